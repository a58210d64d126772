"""NVFP4: E2M1 codes, an F8_E4M3 scale for every 16 of a row, and one float32 scale of a whole matrix over those.

The second scale takes the largest of the matrix to 6 * 448. compressed-tensors 0.20.0 stores what values are multiplied
by, and computes it and the first scales in the type of the weight (`generate_gparam`, `calculate_qparams`); ModelOpt
0.47 (`NVFP4QTensor`) stores its reciprocal, and computes in float32. Matrices that runtimes join must share it: vLLM
takes the largest of the stored ones for all of them, and leaves the first scales as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import fp4, fp8
from mtptools.codecs.floats import rounded

__all__ = ["COMPRESSED_TENSORS", "GROUP", "MODELOPT", "Library"]

Floats = NDArray[np.float32]

GROUP: Final = 16
_FULL: Final = np.float32(fp4.LARGEST * fp8.E4M3_MAX)
_EIGHTH: Final = np.uint8(0x20)  # F8_E4M3 of 1/8
_SMALLEST: Final = np.float32(2.0**-9)
_TINY: Final = {dtype: np.float32(2.0**-126 if dtype != "F16" else 2.0**-14) for dtype in ("F32", "BF16", "F16")}


@dataclass(frozen=True, slots=True)
class Library:
    """One of the two spellings.

    divides  the stored second scale divides the first ones where values are made, instead of multiplying them

    A first scale is never 0: compressed-tensors stores 1/8 in its place, ModelOpt 1 for a group of zeros and 2 ** -9
    for what is too small.
    """

    divides: bool

    def second(self, largest: np.float32, dtype: str) -> np.float32:
        """The second scale of matrices whose largest magnitude is `largest`, a value of `dtype`."""
        if not self.divides:
            return np.float32(largest / _FULL) if largest else np.float32(1)
        with np.errstate(over="ignore"):  # a number over a tensor is two steps to torch: reciprocal, product
            once = rounded(np.array(1 / np.maximum(largest, _TINY[dtype])), dtype)
            scale = rounded(once * _FULL, dtype)[()]
        return np.float32(scale if np.isfinite(scale) else 1)

    def first(self, values: Floats, second: np.float32, dtype: str) -> NDArray[np.uint8]:
        """The scales of groups [rows, cols / 16], as F8_E4M3 bytes."""
        largest = np.abs(rounded(values, dtype)).reshape(len(values), -1, GROUP).max(-1)
        if self.divides:
            scale = second * rounded(largest / np.float32(fp4.LARGEST), dtype)
            stored = fp8.encode_e4m3(scale)
            return np.where(stored == 0, _EIGHTH, stored)
        scale = largest / (np.float32(fp4.LARGEST) * second)
        return fp8.encode_e4m3(np.where(scale == 0, np.float32(1), np.maximum(scale, _SMALLEST)))

    def codes(self, values: Floats, first: NDArray[np.uint8], second: np.float32, dtype: str) -> NDArray[np.uint8]:
        """Packed codes [rows, cols / 2]."""
        scale = fp8.decode(first, "F8_E4M3").reshape(first.shape)
        scale = scale / second if self.divides else scale * second
        groups = rounded(values, dtype).reshape(*first.shape, GROUP)
        return fp4.pack(fp4.encode(groups / scale[..., None]).reshape(values.shape))


COMPRESSED_TENSORS: Final = Library(divides=True)
MODELOPT: Final = Library(divides=False)
