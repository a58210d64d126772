"""How ggml's K-quants lay out a superblock: codes and scales of 256 values as bytes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["half", "join", "scales_3", "scales_4", "scales_6", "stored_4", "stored_6"]

_HIGH: Final = np.uint8(4)  # bits a byte's second field is shifted by
_LOW: Final = np.uint8(15)

Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def half(values: Floats) -> tuple[Codes, Floats]:
    """float32 [blocks] as the bytes of float16 [blocks, 2], and as the values they hold, float32 [blocks, 1]."""
    stored = values.astype("<f2").reshape(-1, 1)
    return stored.view(np.uint8), stored.astype(np.float32)


def join(codes: Codes, runs: int, bits: int, first: int = 0) -> Codes:
    """`bits` bits of each code, from bit `first` on, [blocks, 256], as bytes of 8 / bits codes each.

    Codes are in `runs` runs; those in one byte stand 32 apart.
    """
    parts = codes.reshape(len(codes), runs, -1, 32) >> np.uint8(first) & np.uint8(2**bits - 1)
    out = parts[:, :, 0].copy()
    for i in range(1, parts.shape[2]):
        out |= parts[:, :, i] << np.uint8(bits * i)
    return out.reshape(len(codes), -1)


def scales_4(scales: Codes, minima: Codes) -> Codes:
    """Scales and minima of 4 bits each, [blocks, 16], as bytes [blocks, 16].

    C does not cut scales above 15 off: what they leave in the other field is stored.
    """
    return scales | minima << _HIGH


def stored_4(packed: Codes) -> tuple[Codes, Codes]:
    """The scales and minima [blocks, 16] that `scales_4` stored."""
    return packed & _LOW, packed >> _HIGH


def scales_6(scales: Codes, minima: Codes) -> Codes:
    """8 scales and 8 minima of 6 bits each, [blocks, 8], as bytes [blocks, 12].

    As in `scales_4`, scales above 63 are not cut off.
    """
    out = np.empty((len(scales), 12), np.uint8)
    out[:, :4] = scales[:, :4] | scales[:, 4:] >> 4 << 6
    out[:, 4:8] = minima[:, :4] | minima[:, 4:] >> 4 << 6
    out[:, 8:] = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return out


def stored_6(packed: Codes) -> tuple[Codes, Codes]:
    """The scales and minima [blocks, 8] that `scales_6` stored."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales, minima


def scales_3(scales: Codes) -> Codes:
    """16 scales of 6 bits each, [blocks, 16], as bytes [blocks, 12]."""
    out = np.empty((len(scales), 12), np.uint8)
    out[:, :8] = scales[:, :8] & 15 | (scales[:, 8:] & 15) << 4
    high = scales >> 4
    out[:, 8:] = high[:, :4] | high[:, 4:8] << 2 | high[:, 8:12] << 4 | high[:, 12:] << 6
    return out
