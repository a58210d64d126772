"""MLX's quantized matrices: packed codes, a scale and perhaps a bias for each group of a row.

Everything is what MLX 0.32.4 computes on the CPU, bit for bit (the tests compare with its own output). Values of BF16
and F16 are float32 arrays here, rounded to that type; `mtptools.codecs.floats` makes bytes of them.

A row of codes is one stream of bits, least significant first, in little-endian uint32 words: 8 codes fill `bits` bytes,
so 3, 5 and 6 bits straddle words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import fp4, fp8
from mtptools.codecs.floats import rounded
from mtptools.errors import CodecError

__all__ = [
    "GROUPS",
    "MODES",
    "Mode",
    "affine_scales",
    "dequantize",
    "fp_scales",
    "pack",
    "quantize",
    "quantize_fp",
    "unpack",
]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Mode:
    """One quantization mode: the widths and group sizes it can have, and the type of its scales.

    scales    "weight" (the type the weights had), "F8_E8M0" or "F8_E4M3", both stored as bytes
    largest   of the values a code can have, before the scale; None in affine mode
    """

    bits: tuple[int, ...]
    groups: tuple[int, ...]
    scales: str
    largest: float | None = None


GROUPS: Final = (32, 64, 128)
MODES: Final = {
    "affine": Mode((1, 2, 3, 4, 5, 6, 8), GROUPS, "weight"),
    "mxfp4": Mode((4,), (32,), "F8_E8M0", 6.0),
    "mxfp8": Mode((8,), (32,), "F8_E8M0", 448.0),
    "nvfp4": Mode((4,), (16,), "F8_E4M3", 6.0),
}

_SMALLEST_SCALE: Final = np.float32(1e-7)
_E8M0_BIAS: Final = 127


def unpack(packed: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Words [rows, words] as codes [rows, words * 32 / bits]."""
    octets = np.ascontiguousarray(packed, "<u4").view(np.uint8)
    if 8 % bits == 0:  # no code runs over the end of a byte
        parts = octets[..., None] >> np.arange(0, 8, bits, dtype=np.uint8) & np.uint8((1 << bits) - 1)
        return parts.reshape(len(packed), -1)
    octets = octets.reshape(len(packed), -1, bits)
    wide = np.zeros((*octets.shape[:2], 8), np.uint8)
    wide[..., :bits] = octets
    stream = wide.view("<u8")  # 8 codes in each
    shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
    return (stream >> shifts & np.uint64((1 << bits) - 1)).astype(np.uint8).reshape(len(packed), -1)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Codes [rows, cols] as words [rows, cols * bits / 32]."""
    shifts = np.arange(0, 8 * bits, bits, dtype=np.uint64)
    stream = codes.reshape(len(codes), -1, 8).astype(np.uint64) << shifts
    wide = np.bitwise_or.reduce(stream, axis=-1).astype("<u8")[..., None].view(np.uint8)
    return np.ascontiguousarray(wide[..., :bits]).reshape(len(codes), -1).view("<u4")


def dequantize(
    packed: NDArray[np.uint32],
    scales: Floats | NDArray[np.uint8],
    biases: Floats | None = None,
    *,
    bits: int,
    group: int,
    mode: str = "affine",
    dtype: str = "F32",
) -> Floats:
    """Values [rows, cols], as float32.

    packed   [rows, cols * bits / 32]
    scales   [rows, cols / group]: values of `dtype` in affine mode, else raw bytes (F8_E8M0, NVFP4: F8_E4M3)
    biases   as scales, in affine mode only
    dtype    BF16, F16 or F32: the type of scales and biases. Affine mode rounds to it twice, after the product and
             after the sum. The other modes need none: a product of a code and its scale is exact.

    Raises CodecError for a mode, width, group or shape that MLX does not have.
    """
    _check(mode, bits, group)
    n_cols = packed.shape[-1] * 32 // bits
    if scales.shape != (len(packed), n_cols // group) or n_cols % group:
        raise CodecError(
            f"packed {list(packed.shape)} at {bits} bits in groups of {group} does not go with "
            f"scales {list(scales.shape)}",
            hint="compare bits and group_size in config.json's quantization",
        )
    codes = unpack(packed, bits).reshape(len(packed), -1, group)
    if mode == "affine":
        if biases is None or biases.shape != scales.shape:
            raise CodecError("affine quantization without a bias for each scale", hint="is the mode mxfp4 or mxfp8?")
        product = rounded(codes * scales.astype(np.float32)[..., None], dtype)
        return rounded(product + biases[..., None], dtype).reshape(len(packed), n_cols)
    values = fp8.decode(codes, "F8_E4M3").reshape(codes.shape) if bits == 8 else fp4.VALUES[codes]
    return (values * _factors(scales, mode)[..., None]).reshape(len(packed), n_cols)


def quantize(values: Floats, dtype: str, bits: int, group: int) -> tuple[NDArray[np.uint32], Floats, Floats]:
    """Values [rows, cols] in affine mode: packed codes, scales and biases [rows, cols / group], as values of `dtype`.

    The value of largest magnitude is a whole number of scales from zero, so that zero is kept: most scales are
    negative. The codes are of the scale before it is rounded to `dtype`.

    Raises CodecError for a width or group that MLX does not have, 1 bit, whose scales MLX chooses in another way, or
    rows that are not whole groups.
    """
    groups = _groups(values, dtype, "affine", bits, group)
    scale, bias = _affine(groups, bits)
    top = np.float32((1 << bits) - 1)
    codes = np.clip(np.rint((groups - bias[..., None]) / scale[..., None]), 0, top).astype(np.uint8)
    return pack(codes.reshape(len(values), -1), bits), rounded(scale, dtype), rounded(bias, dtype)


def affine_scales(values: Floats, dtype: str, bits: int, group: int) -> tuple[Floats, Floats]:
    """Scales and biases alone, as `quantize` has them."""
    scale, bias = _affine(_groups(values, dtype, "affine", bits, group), bits)
    return rounded(scale, dtype), rounded(bias, dtype)


def _affine(groups: Floats, bits: int) -> tuple[Floats, Floats]:
    if bits == 1:
        raise CodecError("1 bit is read, not written", hint="2 bits or more")
    low, high = groups.min(-1), groups.max(-1)
    low_is_edge = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / np.float32((1 << bits) - 1), _SMALLEST_SCALE)
    scale = np.where(low_is_edge, scale, -scale)
    edge = np.where(low_is_edge, low, high)
    steps = np.rint(edge / scale)
    whole = steps != 0
    scale = np.where(whole, edge / np.where(whole, steps, np.float32(1)), scale)
    return scale, np.where(whole, edge, np.float32(0))


def quantize_fp(values: Floats, dtype: str, mode: str) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Values [rows, cols] in mxfp4, mxfp8 or nvfp4: packed codes, and scales [rows, cols / group] as raw bytes.

    The shared exponent is rounded up, as MLX does since mlx#4353; versions before rounded it to nearest.
    Raises CodecError for another mode, or rows that are not whole groups.
    """
    groups, bits = _fp_groups(values, dtype, mode)
    scales = _fp_scales(groups, dtype, mode)
    factors = _factors(scales, mode)
    scaled = rounded(groups / np.where(factors == 0, np.float32(1), factors)[..., None], dtype)
    codes = fp8.encode_e4m3(scaled) if bits == 8 else _to_e2m1(scaled, dtype)
    return pack(codes.reshape(len(values), -1), bits), scales


def fp_scales(values: Floats, dtype: str, mode: str) -> NDArray[np.uint8]:
    """Scales alone, as `quantize_fp` has them."""
    return _fp_scales(_fp_groups(values, dtype, mode)[0], dtype, mode)


def _fp_groups(values: Floats, dtype: str, mode: str) -> tuple[Floats, int]:
    chosen = MODES.get(mode)
    if chosen is None or chosen.largest is None:
        raise CodecError(f"no floating-point mode {mode!r} in MLX", hint="one of mxfp4, mxfp8, nvfp4")
    bits = chosen.bits[0]
    return _groups(values, dtype, mode, bits, chosen.groups[0]), bits


def _fp_scales(groups: Floats, dtype: str, mode: str) -> NDArray[np.uint8]:
    chosen = MODES[mode]
    needed = rounded(np.abs(groups).max(-1) / np.float32(chosen.largest or 1), dtype)
    if chosen.scales == "F8_E4M3":
        return fp8.encode_e4m3(needed)
    power = np.ceil(np.log2(np.where(needed == 0, 1, needed).astype(np.float64)).astype(np.float32))
    exponents: NDArray[np.uint8] = np.clip(power + _E8M0_BIAS, 0, 254).astype(np.uint8)
    return exponents


def _factors(scales: NDArray[Any], mode: str) -> Floats:
    """Scale bytes as the numbers they stand for; to MLX the exponent 255 is infinity, not NaN."""
    codec = MODES[mode].scales
    values = fp8.decode(scales.astype(np.uint8), codec).reshape(scales.shape)
    return np.where(scales == fp8.E8M0_NAN, np.float32(np.inf), values) if codec == "F8_E8M0" else values


def _to_e2m1(values: Floats, dtype: str) -> NDArray[np.uint8]:
    """The first of the 16 codes whose value is nearest; distances are rounded to `dtype`, and 0 never becomes -0."""
    if dtype != "BF16":
        return _nearest(values, dtype)
    which = np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)  # there are 65536 of them
    codes: NDArray[np.uint8] = _bf16_codes()[which]
    return codes


@cache
def _bf16_codes() -> NDArray[np.uint8]:
    every = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    return _nearest(np.where(np.isfinite(every), every, np.float32(0)), "BF16")


def _nearest(values: Floats, dtype: str) -> NDArray[np.uint8]:
    size = np.abs(values)  # the values of one sign are the others' mirror, and 0 comes before -0
    best = np.zeros(values.shape, np.uint8)
    nearest = np.full(values.shape, np.inf, np.float32)
    for code, value in enumerate(fp4.VALUES[:8]):
        distance = rounded(np.abs(size - value), dtype)
        closer = distance < nearest
        best[closer] = code
        nearest = np.where(closer, distance, nearest)
    out: NDArray[np.uint8] = best + np.where((values < 0) & (best > 0), np.uint8(8), np.uint8(0))
    return out


def _groups(values: Floats, dtype: str, mode: str, bits: int, group: int) -> Floats:
    """The values, rounded to `dtype`, as [rows, groups, group]."""
    _check(mode, bits, group)
    if values.shape[-1] % group:
        raise CodecError(
            f"a row of {values.shape[-1]} values is not a multiple of MLX's group of {group}",
            hint="group sizes are 32, 64 and 128; keep the matrix in BF16 if none divides its rows",
        )
    return rounded(values, dtype).reshape(len(values), -1, group)


def _check(mode: str, bits: int, group: int) -> None:
    known = MODES.get(mode)
    if known is None:
        raise CodecError(f"unknown MLX mode {mode!r}", hint=f"known modes: {', '.join(MODES)}")
    if bits not in known.bits or group not in known.groups:
        raise CodecError(
            f"MLX has no {mode} of {bits} bits in groups of {group}",
            hint=f"bits {', '.join(map(str, known.bits))}; group sizes {', '.join(map(str, known.groups))}",
        )
