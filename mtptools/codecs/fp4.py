"""FP4 E2M1, two values a byte, and its MX forms: 32 values under one F8_E8M0 exponent.

Packed (DeepSeek-V4, compressed-tensors, MLX): value 2i is the low nibble of byte i, 2i + 1 the high one, scales apart.
GGUF's MXFP4: a block is the exponent, then 16 bytes, byte j holding value j (low) and value j + 16 (high).
The codes and the exponent are the same on both sides (ggml doubles the one and halves the other), so that going
from one to the other only moves nibbles. Sources: OCP Microscaling Formats 1.0; ggml's block_mxfp4.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs.fp8 import MX_GROUP, without_nan
from mtptools.errors import CodecError

__all__ = ["LARGEST", "VALUES", "decode", "encode", "from_mxfp4", "pack", "to_mxfp4"]

# Of codes 0 to 15; code 8 is minus zero.
VALUES: Final = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

LARGEST: Final = 6.0

# Halfway between one value and the next. A tie goes to the even code, as IEEE says: up at the second, fourth and sixth.
_HALFWAY: Final = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32)
_UP: Final = np.array([np.nextafter(h, np.float32(0)) if i % 2 else h for i, h in enumerate(_HALFWAY)], np.float32)

_CODES: Final = np.arange(256)
_PAIRS: Final = np.stack([VALUES[_CODES & 15], VALUES[_CODES >> 4]], axis=-1)

_HALF: Final = MX_GROUP // 2
_BLOCK_BYTES: Final = 1 + _HALF
_HIGH: Final = np.uint8(0xF0)
_LOW: Final = np.uint8(0x0F)
_FOUR: Final = np.uint8(4)


def decode(data: bytes | NDArray[np.uint8]) -> NDArray[np.float32]:
    """Packed bytes as a flat float32 array of twice as many values, low nibble first."""
    codes = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1)
    return _PAIRS[codes].reshape(-1)


def encode(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes 0 to 15 of float32 values: to nearest even, saturating at 6. What rounds to 0 from below is -0, code 8."""
    codes = np.searchsorted(_UP, np.abs(values)).astype(np.uint8)
    return codes | ((values < 0).astype(np.uint8) << np.uint8(3))


def pack(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Codes [..., c] as bytes [..., c / 2], the first of two in the low nibble."""
    return codes[..., 0::2] | codes[..., 1::2] << _FOUR


def to_mxfp4(packed: NDArray[np.uint8], scale: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Packed [..., c / 2] and exponents [..., c / 32] as GGUF blocks [..., 17 c / 32].

    Raises CodecError when the shapes disagree, and for exponent 255 (NaN; ggml, which handles none, reads 2 ** 128).
    """
    if packed.shape[-1] % _HALF or scale.shape != (*packed.shape[:-1], packed.shape[-1] // _HALF):
        raise CodecError(
            f"FP4 bytes {list(packed.shape)} and scales {list(scale.shape)} are not groups of {MX_GROUP} values",
            hint="download the release again",
        )
    source = packed.reshape(*scale.shape, _HALF)
    first, second = source[..., : _HALF // 2], source[..., _HALF // 2 :]
    out = np.empty((*scale.shape, _BLOCK_BYTES), np.uint8)
    out[..., 0] = without_nan(scale)
    out[..., 1::2] = (first & _LOW) | (second << _FOUR)
    out[..., 2::2] = (first >> _FOUR) | (second & _HIGH)
    return out.reshape(*packed.shape[:-1], -1)


def from_mxfp4(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """GGUF blocks [..., 17 c / 32] as packed [..., c / 2] and exponents [..., c / 32]: `to_mxfp4`'s inverse.

    Raises CodecError for a row that is not whole blocks, and for exponent 255: finite to ggml, NaN to all others.
    """
    if blocks.shape[-1] % _BLOCK_BYTES:
        raise CodecError(
            f"a row of {blocks.shape[-1]} bytes is not MXFP4 blocks of {_BLOCK_BYTES}", hint="download the file again"
        )
    source = blocks.reshape(*blocks.shape[:-1], -1, _BLOCK_BYTES)
    scale = without_nan(np.ascontiguousarray(source[..., 0]))
    even, odd = source[..., 1::2], source[..., 2::2]
    packed = np.empty((*scale.shape, _HALF), np.uint8)
    packed[..., : _HALF // 2] = (even & _LOW) | (odd << _FOUR)
    packed[..., _HALF // 2 :] = (even >> _FOUR) | (odd & _HIGH)
    return packed.reshape(*blocks.shape[:-1], -1), scale
