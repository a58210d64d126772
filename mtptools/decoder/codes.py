"""Codes and scales of a Hugging Face or MLX weight, for the kernels that read them as they are stored.

Which schemes there are, and how scales lie over codes, is `mtptools.quantized`'s; here is what the kernels take of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.parts import Codes, Form
from mtptools.quantized import beside, block_of, mlx_layout, scheme_of
from mtptools.quantized.names import CARRIED
from mtptools.quantized.scales import lay
from mtptools.tensors import Tensor

__all__ = ["codes_of"]

_STEP: Final = 32
"""Columns that the kernels take at a time: a group of one scale must be whole ones, or the row."""

_MLX: Final = {4: "MLX_4", 8: "MLX_8"}


def codes_of(name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Codes | None:
    """What `mtptools.quantized.values_of` makes the values of `name` from, where a kernel makes the same values."""
    weight = tensors[name]
    used = {suffix: tensor for suffix, tensor in beside(name, tensors).items() if suffix not in CARRIED}
    if set(used) == {".scales", ".biases"} and weight.codec == "U32":
        return _mlx(name, weight, used, config)
    scheme = scheme_of(weight, used)
    if scheme is None or set(used) != {scheme.scale} or weight.codec not in ("F8_E4M3", "I8", "U8"):
        return None
    scale = used[scheme.scale]
    if scheme.packed:
        if scheme.group != _STEP or 2 * weight.shape[-1] % _STEP:
            return None
        return Codes(Form("FP4_E8M0", _STEP), lambda a, b: (_raw(weight, a, b), _raw(scale, a, b)))
    if scale.codec == "U8":  # exponents, as bytes
        scale = replace(scale, codec="F8_E8M0")
    laid = lay(weight, weight.shape, scale, scheme.group, block_of(config))
    if not _whole(weight.shape[-1], laid.width):
        return None
    return Codes(Form("F8_BLOCK", laid.width), lambda a, b: (_raw(weight, a, b), laid.at(a, b)))


def _mlx(name: str, weight: Tensor, used: Mapping[str, Tensor], config: Mapping[str, Any]) -> Codes | None:
    layout = mlx_layout(config, name.removesuffix(".weight"))
    if layout is None or layout.mode != "affine" or layout.bits not in _MLX:
        return None
    if not _whole(weight.shape[-1] * 32 // layout.bits, layout.group):
        return None
    scales, biases = used[".scales"], used[".biases"]

    def rows(a: int, b: int) -> tuple[NDArray[Any], ...]:
        size = f"<u{scales.nbytes // scales.n_values}"
        return _raw(weight, a, b).view("<u4"), _raw(scales, a, b).view(size), _raw(biases, a, b).view(size)

    return Codes(Form(_MLX[layout.bits], layout.group, scales.codec), rows)


def _whole(columns: int, group: int) -> bool:
    return columns % _STEP == 0 and (group % _STEP == 0 or group >= columns)


def _raw(tensor: Tensor, start: int, stop: int) -> NDArray[np.uint8]:
    """The bytes of rows, leading dimensions flattened: [stop - start, bytes of a row]."""
    size = tensor.nbytes // prod(tensor.shape[:-1])
    return np.frombuffer(tensor.read(start * size, (stop - start) * size), np.uint8).reshape(stop - start, size)
