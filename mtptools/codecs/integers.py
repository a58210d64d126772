"""Symmetric 4-bit integers in groups of a row, as compressed-tensors 0.20.0 makes them.

The library (`calculate_qparams`, `quantize`) computes in the type of the weight, so that a BF16 matrix gets other codes
than its float32 values would: `dtype` is that type, and every step below is rounded to it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs.floats import rounded
from mtptools.codecs.mlx import pack

__all__ = ["BITS", "codes", "packed", "scales"]

Floats = NDArray[np.float32]

BITS: Final = 4
_LOW, _HIGH = np.float32(-8), np.float32(7)
_HALF_RANGE: Final = (_HIGH - _LOW) / 2
# The scale of a group of zeros: the smallest step from 1 in each type.
_EPSILON: Final = {"F32": 2.0**-23, "BF16": 2.0**-7, "F16": 2.0**-10}


def scales(values: Floats, dtype: str, group: int) -> Floats:
    """The scale of each group [rows, cols / group], values of `dtype`: the largest magnitude over 7.5."""
    largest = np.abs(rounded(values, dtype)).reshape(len(values), -1, group).max(-1)
    scale = rounded(largest / _HALF_RANGE, dtype)
    return np.where(scale == 0, np.float32(_EPSILON[dtype]), scale)


def codes(values: Floats, scale: Floats, dtype: str) -> NDArray[np.int8]:
    """Codes -8 to 7 [rows, cols] under `scale` [rows, cols / group]; ties go to the even one."""
    groups = rounded(values, dtype).reshape(*scale.shape, -1)
    steps = np.rint(np.clip(rounded(groups / scale[..., None], dtype), _LOW, _HIGH))
    return steps.astype(np.int8).reshape(values.shape)


def packed(signed: NDArray[np.int8]) -> NDArray[np.int32]:
    """Codes [rows, cols] as words [rows, cols / 8], 8 above each code, the first in the lowest bits."""
    return pack((signed - np.int8(_LOW)).astype(np.uint8), BITS).view("<i4")
