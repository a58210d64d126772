"""From one layout of quantized values to another of the same values: bytes move, none is decoded.

    fp4-e8m0   packed FP4 [..., c / 2] and F8_E8M0 [..., c / 32]: DeepSeek-V4's experts
    fp8-e8m0   F8_E4M3 [..., r, c] and F8_E8M0 of blocks, 128x128: DeepSeek-V4's other matrices
    MXFP4      GGUF blocks [..., 17 c / 32]
    mlx-mxfp4, mlx-mxfp8   uint32 words [..., c / 8] or [..., c / 4] and F8_E8M0 [..., c / 32]

MLX's words are the same bytes in the same order, so a stored tensor needs no repack, only another type and shape.
The E8M0 byte is the same number in all of them from 0 (2 ** -127) to 254, and refused at 255: see `fp8.without_nan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import fp4, fp8

__all__ = ["REPACKS", "Repack"]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]
Repack = Callable[..., tuple[NDArray[Any], ...]]

_BLOCK: Final = (128, 128)


def _words(codes: Bytes) -> Words:
    return np.ascontiguousarray(codes).view("<u4")


def _bytes(words: Words) -> Bytes:
    return np.ascontiguousarray(words, "<u4").view(np.uint8)


def _to_gguf(packed: Bytes, scale: Bytes) -> tuple[Bytes]:
    return (fp4.to_mxfp4(packed, scale),)


def _to_mlx4(packed: Bytes, scale: Bytes) -> tuple[Words, Bytes]:
    return _words(packed), fp8.without_nan(scale)


def _from_mlx4(words: Words, scale: Bytes) -> tuple[Bytes, Bytes]:
    return _bytes(words), fp8.without_nan(scale)


def _to_mlx8(codes: Bytes, scale: Bytes, block: tuple[int, int] = _BLOCK) -> tuple[Words, Bytes]:
    spread = fp8.spread_scale(fp8.without_nan(scale), codes.shape[-2], codes.shape[-1], block)
    return _words(codes), spread


def _from_mlx8(words: Words, scale: Bytes, block: tuple[int, int] = _BLOCK) -> tuple[Bytes, Bytes]:
    return _bytes(words), fp8.gather_scale(fp8.without_nan(scale), block)


# (from, to): the arrays of one layout, values first, then scales, in and out; `block` where there are blocks.
# Raises CodecError for a NaN scale, shapes that are not whole groups, or what the target cannot hold without loss.
REPACKS: Final[Mapping[tuple[str, str], Repack]] = {
    ("fp4-e8m0", "MXFP4"): _to_gguf,
    ("MXFP4", "fp4-e8m0"): fp4.from_mxfp4,
    ("fp4-e8m0", "mlx-mxfp4"): _to_mlx4,
    ("mlx-mxfp4", "fp4-e8m0"): _from_mlx4,
    ("fp8-e8m0", "mlx-mxfp8"): _to_mlx8,
    ("mlx-mxfp8", "fp8-e8m0"): _from_mlx8,
}
