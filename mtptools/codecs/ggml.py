"""ggml's block-quantized types, through gguf-py: the reference for reading every one of them.

gguf-py is imported on first use: it costs more than the rest of a command that only reads headers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import CodecError

__all__ = ["ENCODABLE", "decode", "encode"]

# What gguf-py encodes byte for byte as ggml's C code does, and as fast: of the others it parts from C in the sign of a
# zero (Q4_0 to Q5_1), is ten times slower than need be (MXFP4), or is for models trained that way (TQ1_0, TQ2_0).
ENCODABLE: Final = ("Q8_0",)


def decode(data: bytes, codec: str, n_cols: int) -> NDArray[np.float32]:
    """Bytes of whole rows as float32 [rows, n_cols]."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    blocks = np.frombuffer(data, np.uint8)
    try:
        values = dequantize(blocks, GGMLQuantizationType[codec])
    except (NotImplementedError, KeyError) as error:
        raise CodecError(
            f"gguf-py cannot decode {codec}",
            hint="pip install --upgrade gguf, or use another quantization of this model",
        ) from error
    return np.asarray(values, np.float32).reshape(-1, n_cols)


def encode(values: NDArray[np.float32], codec: str) -> bytes:
    """float32 [rows, cols] as blocks."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    with np.errstate(all="ignore"):  # it divides by the scale of a group of zeros
        return bytes(quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType[codec]).tobytes())
