"""Bit layouts of stored values, and the way between them and float32.

`decode` is bit-equal to gguf-py for every type it knows, `encode` to ggml's C code (x86-64, its baseline build); the
sizes below are ggml's (`GGML_QUANT_SIZES` in gguf-py, which the tests compare against).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import floats, fp8, ggml, ggml_fp4, ggml_library, iq4, kquants, legacy
from mtptools.errors import CodecError
from mtptools.tensors import Tensor

__all__ = [
    "BY_GGML_ID",
    "BY_SAFETENSORS",
    "CODECS",
    "ENCODABLE",
    "EXACT",
    "LIBRARY",
    "NEEDS_IMPORTANCE",
    "Codec",
    "codec_named",
    "decode",
    "decode_bytes",
    "encode",
]


@dataclass(frozen=True, slots=True)
class Codec:
    """`block_values` values are stored in `block_bytes` bytes; rows are whole blocks.

    ggml_id      the type's number in a GGUF file, None when GGUF has no such type
    safetensors  the dtype's name in a safetensors header, None when that format has no such type
    kind         "float" (every value stands alone), "block" (quantized blocks), "int" or "other": 8-bit floats, whose
                 values mean nothing without the scales beside them (`mtptools.quantized`)
    """

    name: str
    block_values: int
    block_bytes: int
    ggml_id: int | None = None
    safetensors: str | None = None
    kind: str = "block"

    def row_bytes(self, n_values: int) -> int:
        """Bytes of a row of `n_values`. Raises CodecError when the row is not whole blocks."""
        if n_values % self.block_values:
            raise CodecError(
                f"a row of {n_values} values is not a multiple of {self.name}'s block of {self.block_values}",
                hint=f"types that fit: {', '.join(fitting(n_values))}",
            )
        return n_values // self.block_values * self.block_bytes


_TABLE: Final = (
    Codec("F32", 1, 4, 0, "F32", "float"),
    Codec("F16", 1, 2, 1, "F16", "float"),
    Codec("BF16", 1, 2, 30, "BF16", "float"),
    Codec("F64", 1, 8, 28, "F64", "float"),
    Codec("Q4_0", 32, 18, 2),
    Codec("Q4_1", 32, 20, 3),
    Codec("Q5_0", 32, 22, 6),
    Codec("Q5_1", 32, 24, 7),
    Codec("Q8_0", 32, 34, 8),
    Codec("Q8_1", 32, 40, 9),
    Codec("Q2_K", 256, 84, 10),
    Codec("Q3_K", 256, 110, 11),
    Codec("Q4_K", 256, 144, 12),
    Codec("Q5_K", 256, 176, 13),
    Codec("Q6_K", 256, 210, 14),
    Codec("Q8_K", 256, 292, 15),
    Codec("IQ2_XXS", 256, 66, 16),
    Codec("IQ2_XS", 256, 74, 17),
    Codec("IQ3_XXS", 256, 98, 18),
    Codec("IQ1_S", 256, 50, 19),
    Codec("IQ4_NL", 32, 18, 20),
    Codec("IQ3_S", 256, 110, 21),
    Codec("IQ2_S", 256, 82, 22),
    Codec("IQ4_XS", 256, 136, 23),
    Codec("IQ1_M", 256, 56, 29),
    Codec("TQ1_0", 256, 54, 34),
    Codec("TQ2_0", 256, 66, 35),
    Codec("MXFP4", 32, 17, 39),
    Codec("NVFP4", 64, 36, 40),
    Codec("Q1_0", 128, 18, 41),
    Codec("I8", 1, 1, 24, "I8", "int"),
    Codec("I16", 1, 2, 25, "I16", "int"),
    Codec("I32", 1, 4, 26, "I32", "int"),
    Codec("I64", 1, 8, 27, "I64", "int"),
    Codec("U8", 1, 1, None, "U8", "int"),
    Codec("U16", 1, 2, None, "U16", "int"),
    Codec("U32", 1, 4, None, "U32", "int"),
    Codec("U64", 1, 8, None, "U64", "int"),
    Codec("BOOL", 1, 1, None, "BOOL", "int"),
    Codec("F8_E4M3", 1, 1, None, "F8_E4M3", "other"),
    Codec("F8_E5M2", 1, 1, None, "F8_E5M2", "other"),
    Codec("F8_E8M0", 1, 1, None, "F8_E8M0", "other"),
)

CODECS: Final = {codec.name: codec for codec in _TABLE}
BY_GGML_ID: Final = {codec.ggml_id: codec for codec in _TABLE if codec.ggml_id is not None}
BY_SAFETENSORS: Final = {codec.safetensors: codec for codec in _TABLE if codec.safetensors is not None}

# Types that only ggml's own code encodes: it must be installed.
LIBRARY: Final = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
ENCODABLE: Final = (
    *("F32", "F16", "BF16"),
    *legacy.TYPES,
    *ggml.ENCODABLE,
    *ggml_fp4.TYPES,
    *kquants.TYPES,
    *iq4.TYPES,
    *LIBRARY,
)
# Quantized types that have one way to be encoded: no search, no importance.
EXACT: Final = frozenset({"Q8_0", "MXFP4", "NVFP4"})
NEEDS_IMPORTANCE: Final = ggml_library.NEEDS_IMPORTANCE


def fitting(n_values: int) -> list[str]:
    """Names of the codecs that can be encoded here and whose block divides a row of `n_values`."""
    return [name for name in ENCODABLE if n_values % CODECS[name].block_values == 0]


def codec_named(name: str) -> Codec:
    """The codec of that name, in any case. Raises CodecError listing the known ones."""
    codec = CODECS.get(name.upper())
    if codec is None:
        raise CodecError(f"unknown type {name!r}", hint=f"known types: {', '.join(CODECS)}")
    return codec


def decode_bytes(data: bytes, codec: str, n_cols: int) -> NDArray[np.float32]:
    """Bytes of whole rows as float32 [rows, n_cols]."""
    kind = CODECS[codec].kind
    if kind == "float":
        return floats.decode(data, codec).reshape(-1, n_cols)
    if kind == "block":
        return ggml.decode(data, codec, n_cols)
    if kind == "other":
        return fp8.decode(data, codec).reshape(-1, n_cols)
    raise CodecError(f"no decoder for {codec} values yet", hint="use a checkpoint in BF16, or a GGUF of it")


def decode(tensor: Tensor, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
    """Rows [start, stop) of a tensor (leading dimensions flattened) as float32 [rows, cols].

    Raises CodecError, which names the tensor, when its type has no decoder.
    """
    n_cols = tensor.shape[-1] if tensor.shape else 1
    stop = tensor.n_rows if stop is None else stop
    if start == stop or not tensor.n_values:
        return np.empty((stop - start, n_cols), np.float32)
    if tensor.rows is not None:
        return tensor.rows(start, stop)
    if tensor.packed is not None:
        return decode_bytes(tensor.packed(start, stop), tensor.codec, n_cols)
    size = tensor.row_bytes
    data = tensor.read(start * size, (stop - start) * size)
    try:
        return decode_bytes(data, tensor.codec, n_cols)
    except CodecError as error:
        raise CodecError(error.what, where=tensor.name, hint=error.hint) from error


def encode(values: NDArray[np.float32], codec: str, importance: NDArray[np.float32] | None = None) -> bytes:
    """float32 [rows, cols] as the bytes of `codec`; floats are rounded to nearest even once.

    importance  float32 [cols], the weight of each column's error; types that ggml does not weight (floats, Q8_0,
                MXFP4, NVFP4) take no notice of it

    Values are finite: what C makes of others in a block is anybody's guess, and the caller knows the tensor's name.
    Raises CodecError when a row is not whole blocks, the type has no encoder here, or it needs importance and gets
    none; MissingExtraError when only ggml's own code encodes it and is not installed.
    """
    chosen = codec_named(codec)
    chosen.row_bytes(values.shape[-1])
    if chosen.kind == "float":
        return floats.encode(values, codec)
    if codec in kquants.TYPES:
        return kquants.encode(values, codec, importance).tobytes()
    if codec in iq4.TYPES:
        return iq4.encode(values, codec, importance).tobytes()
    if codec in legacy.TYPES:
        return legacy.encode(values, codec, importance).tobytes()
    if codec in ggml_fp4.TYPES:
        return ggml_fp4.encode(values, codec).tobytes()
    if codec in ggml.ENCODABLE:
        return ggml.encode(values, codec)
    if codec in LIBRARY:
        return ggml_library.quantize(values, codec, importance).tobytes()
    raise CodecError(f"no encoder for {codec}", hint=f"types that can be written: {', '.join(ENCODABLE)}")
