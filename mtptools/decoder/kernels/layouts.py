"""How a quantized matrix lies on a device: one plane for each field of its blocks.

A file keeps the fields of a block side by side, at odd addresses. A plane holds one field of all blocks, row by row, so
that a kernel reads it in aligned pieces; a GGUF type has as many bytes either way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.codecs import CODECS
from mtptools.errors import CodecError, CorruptError

__all__ = ["FLOATS", "KINDS", "Kind", "Slab", "plane_of", "slab_of"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the kernels need to know of one way to store values.

    fields  of a GGUF block, in the file's order: bytes, and the type of the plane's values; none for kinds whose
            planes a file has apart (`apart`)
    step    columns that a kernel takes at a time: rows are whole steps, but for floats
    parts   pieces of `step / parts` columns, 16 at least, that a step's values are made in
    grid    values are looked up in gguf-py's grid of that type
    """

    fields: tuple[tuple[int, torch.dtype], ...]
    step: int
    parts: int = 1
    grid: bool = False

    @property
    def width(self) -> int:
        return self.step // self.parts


_U8, _I8, _I16, _I32 = torch.uint8, torch.int8, torch.int16, torch.int32
_F16, _F32 = torch.float16, torch.float32
_D: Final = (2, _F16)

KINDS: Final = {
    "F32": Kind(((4, _F32),), 64),
    "F16": Kind((_D,), 64),
    "BF16": Kind(((2, _I16),), 64),
    "Q4_0": Kind((_D, (16, _U8)), 32, 2),
    "Q4_1": Kind((_D, _D, (16, _U8)), 32, 2),
    "Q5_0": Kind((_D, (4, _I32), (16, _U8)), 32, 2),
    "Q5_1": Kind((_D, _D, (4, _I32), (16, _U8)), 32, 2),
    "Q8_0": Kind((_D, (32, _I8)), 32),
    "Q2_K": Kind(((16, _U8), (64, _U8), _D, _D), 256, 16),
    "Q3_K": Kind(((32, _U8), (64, _U8), (12, _U8), _D), 256, 16),
    "Q4_K": Kind((_D, _D, (12, _I32), (128, _U8)), 256, 8),
    "Q5_K": Kind((_D, _D, (12, _I32), (32, _U8), (128, _U8)), 256, 8),
    "Q6_K": Kind(((128, _U8), (64, _U8), (16, _I8), _D), 256, 16),
    "IQ1_S": Kind((_D, (32, _U8), (16, _I16)), 256, 8, grid=True),
    "IQ1_M": Kind(((32, _U8), (16, _U8), (8, _I16)), 256, 8, grid=True),
    "IQ2_XXS": Kind((_D, (64, _I32)), 256, 8, grid=True),
    "IQ2_XS": Kind((_D, (64, _I16), (8, _U8)), 256, 8, grid=True),
    "IQ2_S": Kind((_D, (32, _U8), (32, _U8), (8, _U8), (8, _U8)), 256, 8, grid=True),
    "IQ3_XXS": Kind((_D, (64, _U8), (32, _I32)), 256, 8, grid=True),
    "IQ3_S": Kind((_D, (64, _U8), (8, _U8), (32, _U8), (4, _U8)), 256, 8, grid=True),
    "IQ4_NL": Kind((_D, (16, _U8)), 32, 2),
    "IQ4_XS": Kind((_D, (2, _I16), (4, _U8), (128, _U8)), 256, 16),
    "TQ1_0": Kind(((48, _U8), (4, _U8), _D), 256, 16),
    "TQ2_0": Kind(((64, _U8), _D), 256, 8),
    "MXFP4": Kind(((1, _U8), (16, _U8)), 32, 2),
    "NVFP4": Kind(((4, _U8), (32, _U8)), 64, 2),
    "FP4_E8M0": Kind((), 32, 2),
    "F8_BLOCK": Kind((), 32),
    "MLX_4": Kind((), 32, 2),
    "MLX_8": Kind((), 32),
}

FLOATS: Final = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""The kind whose values are those of a tensor."""


@dataclass(frozen=True, slots=True)
class Slab:
    """A matrix as the kernels read it.

    kind    a key of KINDS
    planes  [rows, values of the plane a row], contiguous, of the dtypes that the kind says
    shape   rows, columns
    group   columns under one scale, where the kind leaves that open
    """

    kind: str
    planes: tuple[Tensor, ...]
    shape: tuple[int, int]
    group: int = 0

    @property
    def nbytes(self) -> int:
        return sum(plane.nbytes for plane in self.planes)

    @property
    def device(self) -> torch.device:
        return self.planes[0].device

    def rows(self, start: int, stop: int) -> Slab:
        """Rows [start, stop): views."""
        planes = tuple(plane[start:stop] for plane in self.planes)
        return replace(self, planes=planes, shape=(stop - start, self.shape[1]))

    def picked(self, ids: Tensor) -> Slab:
        """The rows of int64 ids [n], in their order: copies."""
        planes = tuple(plane[ids] for plane in self.planes)
        return replace(self, planes=planes, shape=(len(ids), self.shape[1]))

    def to(self, device: torch.device) -> Slab:
        return replace(self, planes=tuple(plane.to(device) for plane in self.planes))


def slab_of(codec: str, data: bytes | NDArray[np.uint8], n_cols: int, device: torch.device) -> Slab:
    """Whole rows as a GGUF (of floats: any) file has them: `data` is their bytes, in one piece or [rows, row_bytes].

    Raises CodecError where no kernel reads `codec` or rows are not whole blocks, CorruptError where the bytes are not
    whole rows.
    """
    kind = KINDS.get(codec)
    if kind is None or not kind.fields:
        known = ", ".join(name for name, one in KINDS.items() if one.fields)
        raise CodecError(f"no kernel reads {codec}", hint=f"load it decoded; kernels read {known}")
    size = CODECS[codec].row_bytes(n_cols)
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data.reshape(-1)
    if not size or raw.size % size:
        raise CorruptError(f"{raw.size} bytes are not rows of {n_cols} {codec} values", hint="download the file again")
    blocks = raw.reshape(raw.size // size, n_cols // CODECS[codec].block_values, CODECS[codec].block_bytes)
    planes, at = [], 0
    for n_bytes, dtype in kind.fields:
        planes.append(plane_of(blocks[..., at : at + n_bytes], dtype, device))
        at += n_bytes
    return Slab(codec, tuple(planes), (len(blocks), n_cols))


def plane_of(values: NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An array [rows, …] as a plane [rows, n]: its bytes, seen as `dtype`."""
    copy = np.array(values, order="C")  # a file's bytes are read-only
    octets = copy.reshape(len(values), prod(values.shape[1:])).view(np.uint8)
    return torch.from_numpy(octets).view(dtype).to(device)
