"""8-bit floats, one byte a value: F8_E4M3, F8_E5M2 and F8_E8M0. Values alone; scales are `mtptools.quantized`'s.

F8_E4M3 is the finite-only kind (torch's float8_e4m3fn): no infinity, NaN is 0x7F and 0xFF, the largest value 448.
F8_E5M2 is the high byte of a float16. F8_E8M0 is an exponent, 2 ** (byte - 127), and NaN at 255.
Sources: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0, section 5.4.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs.floats import rounded
from mtptools.errors import CodecError

__all__ = [
    "E4M3_MAX",
    "E8M0_NAN",
    "MX_GROUP",
    "block_scales",
    "decode",
    "encode_blocks",
    "encode_e4m3",
    "gather_scale",
    "spread_scale",
    "without_nan",
]

E4M3_MAX: Final = 448.0
E8M0_NAN: Final = 255
MX_GROUP: Final = 32  # values a scale stands for in MX formats

_NOTHING: Final = np.float32(2.0**-118)

_CODES: Final = np.arange(256)


def _e4m3() -> NDArray[np.float32]:
    exponent, mantissa = (_CODES >> 3) & 15, _CODES & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent > 0, normal, mantissa * 2.0**-9)
    values[0x7F] = values[0xFF] = np.nan
    return np.where(_CODES < 128, values, -values).astype(np.float32)


def _e8m0() -> NDArray[np.float32]:
    values = np.ldexp(1.0, _CODES - 127)
    values[E8M0_NAN] = np.nan
    return values.astype(np.float32)


_TABLES: Final = {
    "F8_E4M3": _e4m3(),
    "F8_E5M2": (_CODES.astype(np.uint16) << 8).view(np.float16).astype(np.float32),
    "F8_E8M0": _e8m0(),
}


def decode(data: bytes | NDArray[np.uint8], codec: str) -> NDArray[np.float32]:
    """Bytes as a flat float32 array; every value is exact."""
    codes = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1)
    table: NDArray[np.float32] = _TABLES[codec]
    return table[codes]


def encode_e4m3(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """float32 as F8_E4M3 of the same shape: to nearest even, saturating at 448, infinity too; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    sign = (bits >> np.uint32(24)) & np.uint32(0x80)
    size = np.minimum(np.abs(values), np.float32(E4M3_MAX))
    nan = np.isnan(size)
    size = np.where(nan, np.float32(0), size).astype(np.float32)
    magnitude = size.view(np.uint32)
    # Three mantissa bits stay of 23, and the exponent's bias goes from 127 to 7.
    rounded = magnitude + np.uint32(0x7FFFF) + ((magnitude >> np.uint32(20)) & np.uint32(1))
    normal = (rounded >> np.uint32(20)) - np.uint32((127 - 7) << 3)
    subnormal = np.rint(size * np.float32(2**9)).astype(np.uint32)
    code = np.where(nan, np.uint32(0x7F), np.where(size < np.float32(2.0**-6), subnormal, normal))
    out: NDArray[np.uint8] = (code | sign).astype(np.uint8)
    return out


def encode_blocks(
    values: NDArray[np.float32], block: tuple[int, int], scales: str = "F32"
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Values [rows, columns] as F8_E4M3 codes of that shape, and the scale that each block's codes are multiplied by.

    block   rows and columns under one scale; the last block of either may be short
    scales  type the scales are stored in (F32, BF16): a code is of the scale as it is stored. "UE8M0" are powers of two
            in F32, rounded up, as DeepSeek-V3.1 says by `scale_fmt` (its `act_quant`: 2 ** ceil(log2(largest / 448)))
    scales' shape is [ceil(rows / block[0]), ceil(columns / block[1])]; a block of zeros has the scale 1, and so has one
    of values below 2 ** -118, for which no scale is finite.

    The largest of a block becomes 448. As transformers 5.23 (`Fp8Quantize`) computes it, in float32: values are
    multiplied by 448 * (1 / largest), which is how torch divides a number by a tensor, and what is stored is the
    reciprocal of that.
    """
    rows, columns = values.shape
    tiles = _tiles(values, block)
    up, down = _block_scales(tiles, scales)
    codes = encode_e4m3(tiles * up[:, None, :, None]).reshape(-1, tiles.shape[2] * block[1])[:rows, :columns]
    return codes, down


def block_scales(values: NDArray[np.float32], block: tuple[int, int], scales: str = "F32") -> NDArray[np.float32]:
    """The scales alone, as `encode_blocks` has them."""
    return _block_scales(_tiles(values, block), scales)[1]


def _tiles(values: NDArray[np.float32], block: tuple[int, int]) -> NDArray[np.float32]:
    """[rows, columns] as [blocks, rows of a block, blocks, columns of a block], filled up with zeros."""
    rows, columns = values.shape
    padded = np.pad(values, ((0, -rows % block[0]), (0, -columns % block[1])))
    return padded.reshape(len(padded) // block[0], block[0], -1, block[1])


def _block_scales(tiles: NDArray[np.float32], scales: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(what values are multiplied by, its reciprocal as it is stored)."""
    largest = np.maximum(tiles.max((1, 3)), -tiles.min((1, 3)))
    there = largest > _NOTHING
    if scales == "UE8M0":
        fraction, power = np.frexp(np.where(there, largest, np.float32(1)) / np.float32(E4M3_MAX))
        down = np.where(there, np.ldexp(np.float32(1), power - (fraction == 0.5)), np.float32(1)).astype(np.float32)
        return np.reciprocal(down), down
    once = np.reciprocal(np.where(there, largest, np.float32(1)))
    up = np.where(there, once * np.float32(E4M3_MAX), np.float32(1))
    down = np.reciprocal(up)
    if scales != "F32":
        down = rounded(down, scales)
        up = np.reciprocal(down)
    return up, down


def without_nan(scale: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The same F8_E8M0 bytes. Raises CodecError for 255: NaN here, 2 ** 128 to ggml, infinity to MLX."""
    if (scale == E8M0_NAN).any():
        raise CodecError(
            "a scale is NaN (byte 255), which runtimes read as a number", hint="download the release again"
        )
    return scale


def spread_scale(scale: NDArray[Any], rows: int, columns: int, block: tuple[int, int]) -> NDArray[Any]:
    """Scales of blocks [..., ceil(rows / block[0]), ceil(columns / block[1])] as MX scales [..., rows, columns / 32].

    Raises CodecError when a group of 32 values is not within one block.
    """
    _whole_groups(columns, block)
    wide = np.repeat(np.repeat(scale, block[1] // MX_GROUP, axis=-1), block[0], axis=-2)
    return np.ascontiguousarray(wide[..., :rows, : columns // MX_GROUP])


def gather_scale(scale: NDArray[Any], block: tuple[int, int]) -> NDArray[Any]:
    """The inverse of `spread_scale`. Raises CodecError when the scales within a block are not all one."""
    rows, columns = scale.shape[-2], scale.shape[-1] * MX_GROUP
    _whole_groups(columns, block)
    narrow = np.ascontiguousarray(scale[..., :: block[0], :: block[1] // MX_GROUP])
    if not np.array_equal(spread_scale(narrow, rows, columns, block), scale):
        raise CodecError(
            f"scales differ within a block of {block[0]}x{block[1]} values: one scale a block would lose",
            hint="convert to a float type instead",
        )
    return narrow


def _whole_groups(columns: int, block: tuple[int, int]) -> None:
    if columns % MX_GROUP or block[1] % MX_GROUP:
        raise CodecError(
            f"rows of {columns} values in blocks of {block[0]}x{block[1]} are not groups of {MX_GROUP}",
            hint="convert to a float type instead",
        )
