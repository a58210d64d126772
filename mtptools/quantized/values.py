"""A weight and what stands beside it, as its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mtptools.codecs import CODECS
from mtptools.errors import CodecError
from mtptools.quantized.config import MlxLayout, block_of, mlx_layout
from mtptools.quantized.integers import integers, is_integers
from mtptools.quantized.mlx import is_mlx, mlx_values
from mtptools.quantized.names import CARRIED, STORED, beside
from mtptools.quantized.scales import scaled
from mtptools.quantized.schemes import BETTER, CODES, REFUSED, scheme_of
from mtptools.tensors import Tensor

__all__ = ["logical", "values_of"]


def logical(
    weight: Tensor,
    beside: Mapping[str, Tensor],
    *,
    block: tuple[int, int] = (128, 128),
    mlx: MlxLayout | None = None,
) -> Tensor:
    """The values of a weight: itself when it is float and alone, else a computed F32 tensor of its logical shape.

    weight  [r, c] or stacked [E, r, c] as stored; packed FP4 is [.., r, c / 2], MLX words [.., r, c * bits / 32]
    beside  suffix -> tensor, as `beside` finds them; stacked scales have E in front
    block   rows and columns under one scale, where scales are a grid
    mlx     what the config says of the module (`mlx_layout`), for X.scales

    Raises CodecError for a scheme that is not known, CorruptError when shapes do not fit each other, ConventionError
    for MLX scales without `mlx`.
    """
    used = {suffix: tensor for suffix, tensor in beside.items() if suffix not in CARRIED}
    scheme = scheme_of(weight, used)
    if scheme is not None and set(used) <= {scheme.scale, scheme.second}:
        return scaled(weight, used, scheme, block)
    if is_integers(weight, used):
        return integers(weight, used)
    if is_mlx(weight, used):
        return mlx_values(weight, used, mlx)
    codes = CODECS[weight.codec].kind == "other" or weight.codec in CODES or weight.name.endswith(STORED[1:])
    if not used and not codes:
        return weight
    raise _unknown(weight, used)


def values_of(name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    """`logical` of the weight stored as `name` among the tensors of a checkpoint with this config.json."""
    found = beside(name, tensors)
    words = mlx_layout(config, name.removesuffix(".weight")) if ".scales" in found else None
    return logical(tensors[name], found, block=block_of(config), mlx=words)


def _unknown(weight: Tensor, used: Mapping[str, Tensor]) -> CodecError:
    method = _method(weight, used)
    if method is not None:
        return CodecError(f"quantized by {method}, which is not read", where=weight.name, hint=BETTER)
    stand = ", ".join(f"{suffix} {tensor.codec}{list(tensor.shape)}" for suffix, tensor in used.items())
    return CodecError(
        f"{weight.codec}{list(weight.shape)} with {stand or 'no scale'} beside it is no layout known here",
        where=weight.name,
        hint=BETTER,
    )


def _method(weight: Tensor, used: Mapping[str, Tensor]) -> str | None:
    """The method that makes tensors like these; None: not known."""
    named = next((name for suffix, name in REFUSED.items() if suffix in used), None)
    scales = used.get(".scales")
    if weight.name.endswith(".qweight") and named in (None, "GPTQ or AWQ"):
        # GPTQ packs codes along the rows of [in, out], AWQ along its columns: what the scales have, 8 times over.
        if scales is None or not scales.shape or not weight.shape:
            return "GPTQ or AWQ"
        return "GPTQ" if weight.shape[-1] == scales.shape[-1] else "AWQ"
    if weight.name.endswith(".weight_packed") and weight.codec == "I32" and not used:
        return "compressed-tensors pack-quantized, whose scales are not there"
    return named
