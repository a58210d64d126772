"""F64, F32, F16 and BF16: every value stands alone, little-endian."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["decode", "encode", "rounded"]

_NUMPY: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def decode(data: bytes, codec: str) -> NDArray[np.float32]:
    """Bytes as a flat float32 array."""
    if codec == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, _NUMPY[codec]).astype(np.float32)


def encode(values: NDArray[np.float32], codec: str) -> bytes:
    """float32 values as bytes, rounded to nearest even; a NaN stays a quiet NaN."""
    values = np.ascontiguousarray(values, np.float32)
    if codec != "BF16":
        return values.astype(_NUMPY[codec]).tobytes()
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet_nan = bits | np.uint32(0x400000)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return (np.where(is_nan, quiet_nan, rounded) >> np.uint32(16)).astype("<u2").tobytes()


def rounded(values: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """float32 values, rounded to `dtype` (F32, BF16, F16)."""
    if dtype == "F32":
        return np.asarray(values, np.float32)
    if dtype == "BF16" and np.isfinite(values).all():
        bits = np.array(values, np.float32).view(np.uint32)
        bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        bits &= np.uint32(0xFFFF0000)
        return bits.view(np.float32)
    return decode(encode(values, dtype), dtype).reshape(values.shape)
