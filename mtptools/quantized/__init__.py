"""Hugging Face and MLX weights whose values stand in several tensors, as one lazily computed float tensor.

A weight `X.weight` of a quantized release holds codes; scales stand beside it under names of each method's own. Which
scheme a weight is in follows from types and names alone, every tensor beside it must be accounted for, and what is not
described here is refused by name. Values are value(code) * scale in float32; where there are two scales they are
multiplied (or divided) first, as ModelOpt and compressed-tensors do.

    schemes.py    FP8, FP4 and NVFP4 as rows of a table; scales.py computes them
    integers.py   compressed-tensors' int4 and int8;  mlx.py  MLX's words
    names.py      what stands beside a weight;  config.py  what config.json must say;  values.py  the way in
    encode.py     the way back: a matrix of floats in one of the encodings; encodings.py  their table
"""

from __future__ import annotations

from mtptools.quantized.config import MlxLayout, block_of, mlx_layout
from mtptools.quantized.encode import encoded, encoding_of
from mtptools.quantized.encodings import BLOCK, ENCODINGS, NAMES, Encoding, encoding_named, fitting
from mtptools.quantized.names import COMPANIONS, beside, companions, stored_name
from mtptools.quantized.schemes import SCHEMES, Scheme, scheme_of
from mtptools.quantized.values import logical, values_of

__all__ = [
    "BLOCK",
    "COMPANIONS",
    "ENCODINGS",
    "NAMES",
    "SCHEMES",
    "Encoding",
    "MlxLayout",
    "Scheme",
    "beside",
    "block_of",
    "companions",
    "encoded",
    "encoding_named",
    "encoding_of",
    "fitting",
    "logical",
    "mlx_layout",
    "scheme_of",
    "stored_name",
    "values_of",
]
