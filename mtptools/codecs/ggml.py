"""ggml's block-quantized types, through gguf-py: the reference for reading every one of them.

Large amounts of the common types are decoded by compiled code, to the same bits. gguf-py and numba are imported on
first use: they cost more than the rest of a command that only reads headers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs.engine import Engine, twin
from mtptools.errors import CodecError

__all__ = ["COMPILED", "ENCODABLE", "PATIENCE", "decode", "encode"]

# What gguf-py encodes byte for byte as ggml's C code does, and as fast: of the others it parts from C in the sign of a
# zero (Q4_0 to Q5_1), is ten times slower than need be (MXFP4), or is for models trained that way (TQ1_0, TQ2_0).
ENCODABLE: Final = ("Q8_0",)


# What `decode_fast` has.
COMPILED: Final = frozenset(
    (*("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"), "IQ4_NL", "IQ4_XS", "MXFP4")
)

PATIENCE: Final = 8 << 20
"""Bytes that gguf-py decodes before numba is imported: it takes about as long over them as the import takes."""

_seen = 0  # bytes decoded so far, of types in COMPILED


def decode(data: bytes | bytearray, codec: str, n_cols: int, *, engine: Engine | None = None) -> NDArray[np.float32]:
    """Bytes of whole rows as float32 [rows, n_cols]; values that are not finite come without a warning.

    engine  what decodes, with the same bits (but which NaN, where a sum is of two). None: gguf-py for the first
            PATIENCE bytes of a process, then numba where it is installed

    Raises CodecError for a type that gguf-py does not know.
    """
    blocks = np.frombuffer(data, np.uint8)
    found = twin("decode_fast", engine) if codec in COMPILED and (engine or _enough(len(blocks))) else None
    values = _by_gguf_py(blocks, codec) if found is None else found.decode(blocks, codec)
    return values.reshape(-1, n_cols)


def _enough(n_bytes: int) -> bool:
    """Has so much been decoded that the import pays? Counts `n_bytes` more."""
    global _seen
    _seen += n_bytes
    return _seen > PATIENCE


def _by_gguf_py(blocks: NDArray[np.uint8], codec: str) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        with np.errstate(all="ignore"):
            return np.asarray(dequantize(blocks, GGMLQuantizationType[codec]), np.float32)
    except (NotImplementedError, KeyError) as error:
        raise CodecError(
            f"gguf-py cannot decode {codec}",
            hint="pip install --upgrade gguf, or use another quantization of this model",
        ) from error


def encode(values: NDArray[np.float32], codec: str) -> bytes:
    """float32 [rows, cols] as blocks."""
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    with np.errstate(all="ignore"):  # it divides by the scale of a group of zeros
        return bytes(quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType[codec]).tobytes())
