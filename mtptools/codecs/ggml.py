"""ggml's block-quantized types, through gguf-py: the reference for every one of them.

gguf-py is imported on first use: it costs more than the rest of a command that only reads headers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import CodecError

__all__ = ["ENCODABLE", "decode", "encode"]

# What gguf-py 0.19 can encode, byte-equal to ggml's C code, apart from the ternary TQ types: these are for models
# trained that way, and turn any other matrix into noise.
ENCODABLE: Final = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")


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

    return bytes(quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType[codec]).tobytes())
