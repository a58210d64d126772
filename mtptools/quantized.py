"""Hugging Face and MLX weights whose values stand in several tensors, as one lazily computed float tensor.

A weight `X.weight` of a quantized release holds codes; scales stand beside it under names of each method's own. A
scheme is a row of `SCHEMES`; which one a weight is in follows from types and names alone, every tensor beside it
must be accounted for, and what no row describes is refused by name. Values are value(code) * scale in float32; where
there are two scales they are multiplied (or divided) first, as ModelOpt and compressed-tensors do.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import CODECS, decode, decode_bytes, fp4
from mtptools.codecs import mlx as mlx_codec
from mtptools.errors import CodecError, ConventionError, CorruptError
from mtptools.tensors import Tensor
from mtptools.views import computed, reshaped

__all__ = [
    "COMPANIONS",
    "SCHEMES",
    "MlxLayout",
    "Scheme",
    "beside",
    "block_of",
    "companions",
    "logical",
    "mlx_layout",
    "scheme_of",
    "stored_name",
]

_HINT: Final = "take the head from the BF16 or FP8 release of this model"
_FP8: Final = ("F8_E4M3", "F8_E5M2")
_FLOAT: Final = ("F32", "BF16", "F16")
_CODES: Final = ("I8", "U8", "U32")  # integers that are never values of a weight
_E8M0: Final = ("F8_E8M0", "U8")  # older safetensors have no name for the type


@dataclass(frozen=True)
class Scheme:
    """How codes and scales make values.

    weight   types of the codes; `packed`: two FP4 a byte, the stored row half as wide as the logical one
    scale    suffix of the scales, and `scales` their types
    group    values of a row that share a scale; None: the shapes say (block, channel, tensor)
    second   suffix of a scale of the scales; `divides`: it divides them
    """

    name: str
    weight: tuple[str, ...]
    scale: str
    scales: tuple[str, ...]
    group: int | None = None
    packed: bool = False
    second: str | None = None
    divides: bool = False
    source: str = ""


SCHEMES: Final = (
    Scheme(
        "fp8", _FP8, ".weight_scale_inv", (*_FLOAT, "F8_E8M0"),
        source="transformers FineGrainedFP8Config, weight_block_size; DeepSeek-V3, MiMo-V2, Step-3.7-FP8",
    ),
    Scheme(
        "mxfp8", _FP8, ".weight_scale_inv", ("U8",), 32,
        source="transformers Fp8Dequantize: exponents stored as bytes",
    ),
    Scheme(
        "fp8", _FP8, ".weight_scale", _FLOAT,
        source="compressed-tensors float-quantized, ModelOpt FP8; GLM-4.5-FP8 [r, 1]",
    ),
    Scheme("mxfp8", _FP8, ".weight_scale", _E8M0, 32, source="compressed-tensors mxfp8-quantized"),
    Scheme(
        "fp8-e8m0", _FP8, ".scale", ("F8_E8M0",), source="DeepSeek-V4: 128x128 blocks, scale_fmt ue8m0",
    ),
    Scheme("fp8", _FP8, ".scale", _FLOAT, source="DeepSeek-V4-Base: the same with float32 scales"),
    Scheme(
        "fp4-e8m0", ("I8", "U8"), ".scale", _E8M0, 32, True,
        source="DeepSeek-V4 experts, expert_dtype fp4: I8 of two E2M1, the low nibble first",
    ),
    Scheme(
        "fp4-e8m0", ("U8",), ".weight_scale", ("U8", "F8_E8M0"), 32, True,
        source="compressed-tensors mxfp4-pack-quantized; llama.cpp repacks it as DeepSeek-V4's experts",
    ),
    Scheme(
        "nvfp4", ("U8",), ".weight_scale", ("F8_E4M3",), 16, True, ".weight_scale_2",
        source="ModelOpt NVFP4QTensor: code * (weight_scale * weight_scale_2)",
    ),
    Scheme(
        "nvfp4", ("U8",), ".weight_scale", ("F8_E4M3",), 16, True, ".weight_global_scale", divides=True,
        source="compressed-tensors nvfp4-pack-quantized: code * (weight_scale / weight_global_scale)",
    ),
    Scheme("nvfp4-gguf", ("NVFP4",), ".scale", ("F32",), source="llama.cpp: ModelOpt's second scale, [1] or [experts]"),
)  # fmt: skip

# Suffixes that hold a weight's codes in place of ".weight".
_STORED: Final = (".weight", ".weight_packed", ".qweight")
# Of tensors that do not change the weight's values.
_CARRIED: Final = (".input_scale", ".input_global_scale", ".q_scale", ".k_scale", ".v_scale")
_MLX_SCALE, _MLX_BIAS = ".scales", ".biases"
# Of tensors that say that values are made in a way that is not known here.
_REFUSED: Final[Mapping[str, str]] = {
    ".qzeros": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".weight_shape": "compressed-tensors pack-quantized (integers)",
    ".weight_zero_point": "compressed-tensors with zero points",
    ".weight_g_idx": "compressed-tensors with activation order",
    ".pre_quant_scale": "ModelOpt AWQ (pre_quant_scale)",
    ".weight.absmax": "bitsandbytes 4-bit",
    ".weight.quant_map": "bitsandbytes 4-bit",
    ".weight.nested_absmax": "bitsandbytes 4-bit",
    ".weight.nested_quant_map": "bitsandbytes 4-bit",
    ".weight.quant_state.bitsandbytes__nf4": "bitsandbytes NF4",
    ".weight.quant_state.bitsandbytes__fp4": "bitsandbytes FP4",
    ".SCB": "bitsandbytes 8-bit",
    ".weight_format": "bitsandbytes 8-bit",
}
# Every suffix of a tensor that belongs to a weight.
COMPANIONS: Final = tuple(
    dict.fromkeys(
        [suffix for scheme in SCHEMES for suffix in (scheme.scale, scheme.second) if suffix is not None]
        + [_MLX_SCALE, _MLX_BIAS, *_CARRIED, *_REFUSED]
    )
)


def _stem(name: str) -> str | None:
    """X of X.weight, however it is stored; None for a parameter with a name of its own (experts.gate_up_proj)."""
    return next((name.removesuffix(suffix) for suffix in _STORED if name.endswith(suffix)), None)


def _names(name: str) -> dict[str, str]:
    """What each companion of weight `name` would be called: suffix -> name."""
    stem = _stem(name)
    if stem is not None:
        return {suffix: stem + suffix for suffix in COMPANIONS}
    own = [suffix for suffix in COMPANIONS if suffix.startswith(".weight_")]
    return {suffix: name + suffix.removeprefix(".weight") for suffix in own}


def companions(name: str, names: Container[str]) -> tuple[str, ...]:
    """The tensors of `names` that belong to weight `name`: its scales, and what is carried along."""
    return tuple(full for full in _names(name).values() if full in names)


def beside(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same as suffix -> tensor, as `logical` takes them."""
    return {suffix: tensors[full] for suffix, full in _names(name).items() if full in tensors}


def stored_name(name: str, names: Container[str]) -> str:
    """The tensor of `names` that holds weight `name`: X.weight, or X.weight_packed, X.qweight in its place."""
    stem = _stem(name)
    if name in names or stem is None:
        return name
    return next((stem + suffix for suffix in _STORED if stem + suffix in names), name)


@dataclass(frozen=True)
class MlxLayout:
    """An entry of an MLX config's `quantization`."""

    bits: int
    group: int
    mode: str = "affine"


def mlx_layout(config: Mapping[str, Any], module: str) -> MlxLayout | None:
    """How config.json says `module` (X of X.weight) is quantized; None: it is not. Raises CorruptError."""
    table = config.get("quantization")
    entry = table.get(module, table) if isinstance(table, dict) else None
    if entry is None or entry is False:
        return None
    if entry is True:  # quantized as everything else is
        entry = table
    stated = {**table, **entry} if isinstance(table, dict) and isinstance(entry, dict) else {}
    bits, group, mode = stated.get("bits"), stated.get("group_size"), stated.get("mode", "affine")
    if not (isinstance(bits, int) and isinstance(group, int) and isinstance(mode, str) and 0 < bits <= 8 and group > 0):
        raise CorruptError(
            f"quantization of {module} is {entry!r}",
            where="config.json",
            hint="take config.json from the release again",
        )
    return MlxLayout(bits, group, mode)


def block_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """quantization_config.weight_block_size, rows and columns; 128x128, every release's, when there is none."""
    quant = config.get("quantization_config")
    block = quant.get("weight_block_size") if isinstance(quant, dict) else None
    if block is None:
        return 128, 128
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
        raise CorruptError(
            f"weight_block_size is {block!r}, not two sizes", where="config.json", hint="take config.json again"
        )
    return block[0], block[1]


def scheme_of(weight: Tensor, beside: Mapping[str, Tensor]) -> Scheme | None:
    """The row of SCHEMES that describes a weight; None when it has no scale that says so."""
    for scheme in SCHEMES:
        scale = beside.get(scheme.scale)
        whole = scheme.second is None or scheme.second in beside
        if whole and weight.codec in scheme.weight and scale is not None and scale.codec in scheme.scales:
            return scheme
    return None


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
    used = {suffix: tensor for suffix, tensor in beside.items() if suffix not in _CARRIED}
    scheme = scheme_of(weight, used)
    if scheme is not None and set(used) <= {scheme.scale, scheme.second}:
        return _scaled(weight, used, scheme, block)
    if weight.codec == "U32" and _MLX_SCALE in used and set(used) <= {_MLX_SCALE, _MLX_BIAS}:
        return _mlx(weight, used, mlx)
    codes = CODECS[weight.codec].kind == "other" or weight.codec in _CODES or weight.name.endswith(_STORED[1:])
    if not used and not codes:
        return weight
    raise _unknown(weight, used)


def _unknown(weight: Tensor, used: Mapping[str, Tensor]) -> CodecError:
    method = next((name for suffix, name in _REFUSED.items() if suffix in used), None)
    if method is None and weight.name.endswith(".qweight"):
        method = "GPTQ or AWQ"
    if method is None and weight.name.endswith(".weight_packed") and weight.codec == "I32":
        method = _REFUSED[".weight_shape"]
    if method is not None:
        return CodecError(f"quantized by {method}, which is not read", where=weight.name, hint=_HINT)
    stand = ", ".join(f"{suffix} {tensor.codec}{list(tensor.shape)}" for suffix, tensor in used.items())
    return CodecError(
        f"{weight.codec}{list(weight.shape)} with {stand or 'no scale'} beside it is no layout known here",
        where=weight.name,
        hint=_HINT,
    )


def _value_name(weight: Tensor) -> str:
    stem = _stem(weight.name)
    return weight.name if stem is None else f"{stem}.weight"


@dataclass(frozen=True)
class _Scale:
    """Scales laid over the flat rows of a weight: `each` of the `rows` of a matrix, and `width` columns, under one."""

    tensor: Tensor
    rows: int
    each: int
    width: int

    def at(self, start: int, stop: int) -> NDArray[np.float32]:
        """The scales of rows [start, stop): [stop - start, scales a row]."""
        matrix, row = np.divmod(np.arange(start, stop), self.rows)
        index = matrix * -(-self.rows // self.each) + row // self.each
        low = int(index[0])
        values: NDArray[np.float32] = decode(self.tensor, low, int(index[-1]) + 1)[index - low]
        return values


def _unfit(weight: Tensor, scale: Tensor, shape: tuple[int, ...], how: str) -> CorruptError:
    return CorruptError(
        f"scales {list(scale.shape)} do not fit values {list(shape)} {how}",
        where=f"{weight.name}, {scale.name}",
        hint="compare the sizes that config.json states, or download the release again",
    )


def _laid(weight: Tensor, shape: tuple[int, ...], scale: Tensor, group: int | None, block: tuple[int, int]) -> _Scale:
    """How a tensor of scales lies over a weight of logical `shape`. Raises CorruptError when it does not."""
    *lead, r, c = shape if len(shape) > 1 else (1, *shape)
    total = prod(lead) * r
    # shape of the scales: rows of a matrix, rows and columns under one scale
    fits: dict[tuple[int, ...], tuple[int, int, int]]
    if group is not None:
        fits = {(*lead, r, -(-c // group)): (r, 1, group)}
    else:
        fits = {
            (): (total, total, c),
            (1,): (total, total, c),
            tuple(lead): (r, r, c) if lead else (total, total, c),
            (*lead, 1): (r, r, c),
            (*lead, 1, 1): (r, r, c),
            (*lead, r): (r, 1, c),
            (*lead, r, 1): (r, 1, c),
            (*lead, -(-r // block[0]), -(-c // block[1])): (r, *block),
        }
    if scale.shape not in fits or 0 in shape:
        raise _unfit(weight, scale, shape, f"in groups of {group}" if group else f"in blocks of {block[0]}x{block[1]}")
    rows, each, width = fits[scale.shape]
    n_rows = total // rows * -(-rows // each)
    return _Scale(reshaped(scale, (n_rows, -(-c // width)), scale.name), rows, each, width)


def _scaled(weight: Tensor, used: Mapping[str, Tensor], scheme: Scheme, block: tuple[int, int]) -> Tensor:
    shape = (*weight.shape[:-1], 2 * weight.shape[-1]) if scheme.packed else weight.shape
    scale = used[scheme.scale]
    if scale.codec == "U8":
        scale = replace(scale, codec="F8_E8M0")
    first = _laid(weight, shape, scale, scheme.group, block)
    second = None
    if scheme.second is not None:  # one a matrix
        second = _laid(weight, shape, used[scheme.second], None, (prod(shape[:-1]) or 1, shape[-1] or 1))

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        factor = first.at(start, stop)
        if second is not None:
            factor = factor / second.at(start, stop) if scheme.divides else factor * second.at(start, stop)
        if scheme.packed:
            size = weight.row_bytes
            values = fp4.decode(weight.read(start * size, (stop - start) * size)).reshape(-1, shape[-1])
        else:
            values = decode(weight, start, stop)
        return _times(values, factor, first.width)

    return computed(_value_name(weight), shape, "F32", rows)


def _times(values: NDArray[np.float32], factor: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """values [n, c] times the factor [n, ceil(c / width)] of each run of `width` columns."""
    n, c = values.shape
    if c % width:
        return values * np.repeat(factor, width, axis=1)[:, :c]
    return (values.reshape(n, -1, width) * factor[:, :, None]).reshape(n, c)


def _mlx(weight: Tensor, used: Mapping[str, Tensor], layout: MlxLayout | None) -> Tensor:
    scales, biases = used[_MLX_SCALE], used.get(_MLX_BIAS)
    if layout is None:
        raise ConventionError(
            "has scales, and the config states no bits and group size for it",
            where=weight.name,
            hint="take config.json, with its quantization table, from the release again",
        )
    words = weight.shape[-1]
    shape = (*weight.shape[:-1], words * 32 // layout.bits)
    how = f"at {layout.bits} bits in groups of {layout.group}"
    for other in (scales, biases):
        if other is not None and other.shape != (*shape[:-1], -(-shape[-1] // layout.group)):
            raise _unfit(weight, other, shape, how)
    affine = layout.mode == "affine"
    if affine != (biases is not None) or scales.codec not in (_FLOAT if affine else ("U8",)):
        stand = f"{scales.codec} scales and {'no biases' if biases is None else 'biases'}"
        raise CodecError(f"mode {layout.mode} does not go with {stand}", where=weight.name, hint=_HINT)

    def part(tensor: Tensor, start: int, stop: int) -> NDArray[Any]:
        data = tensor.read(start * tensor.row_bytes, (stop - start) * tensor.row_bytes)
        if tensor.codec == "U8":
            return np.frombuffer(data, np.uint8).reshape(stop - start, -1)
        return decode_bytes(data, tensor.codec, tensor.shape[-1])

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        size = weight.row_bytes
        packed = np.frombuffer(weight.read(start * size, (stop - start) * size), "<u4").reshape(-1, words)
        return mlx_codec.dequantize(
            packed,
            part(scales, start, stop),
            None if biases is None else part(biases, start, stop),
            bits=layout.bits,
            group=layout.group,
            mode=layout.mode,
            dtype=scales.codec if biases is not None else "F32",
        )

    return computed(_value_name(weight), shape, "F32", rows)
