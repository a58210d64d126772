"""Where values are stored, before anything is read.

A `Blob` is a run of bytes in one file. A `Tensor` is one logical weight: the bytes of its blobs, one after
the other, are its rows in order; nothing is read until rows are asked for. A tensor that is not stored as it is
wanted (dequantized, transposed) has a function that makes its rows instead: see `mtptools.views`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import CorruptError

__all__ = ["NOWHERE", "PARTIAL", "Arriving", "Blob", "Packed", "Rows", "Tensor", "need", "read_blob"]

# The file of a blob whose place is not known: of a computed tensor, or of one that is yet to be written.
NOWHERE: Final = Path()

# Makes rows [start, stop) of a computed tensor: float32 [stop - start, columns], or their bytes in its codec.
Rows = Callable[[int, int], NDArray[np.float32]]
Packed = Callable[[int, int], bytes]


class Arriving(Protocol):
    """A local file of which parts are here: the rest is fetched when it is asked for."""

    def need(self, offset: int, nbytes: int) -> None:
        """Return when these bytes are in the file. Raises SystemFailure or CorruptError."""

    def missing(self, offset: int, nbytes: int) -> int:
        """How many of these bytes are not here yet."""


# Files that are only partly here, by path. Whoever reads a file that a person named asks `need` first: where the
# bytes have not arrived a sparse file holds zeros, and zeros would pass for weights.
PARTIAL: Final[dict[Path, Arriving]] = {}


def need(path: Path, offset: int = 0, nbytes: int | None = None) -> None:
    """Return when `nbytes` at `offset` (None: all to the end) can be read; at once for a file that is whole."""
    if (file := PARTIAL.get(path)) is not None:
        file.need(offset, path.stat().st_size - offset if nbytes is None else nbytes)


@dataclass(frozen=True, slots=True)
class Blob:
    """`nbytes` bytes at `offset` of the file `path`."""

    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One logical weight.

    name    as its container spells it
    shape   torch order, slowest dimension first (GGUF's `ne` reversed)
    codec   bit layout of the values, a key of `mtptools.codecs.CODECS`: "F32", "BF16", "Q4_K" …
    blobs   where the bytes are; their concatenation is the rows in order
    rows    makes the rows of a computed tensor, whose values `codec` holds without loss and whose one blob is
            NOWHERE; None when the bytes are stored
    packed  makes the bytes of rows instead, of a tensor whose values only change their layout
    """

    name: str
    shape: tuple[int, ...]
    codec: str
    blobs: tuple[Blob, ...]
    rows: Rows | None = field(default=None, compare=False)
    packed: Packed | None = field(default=None, compare=False)

    @property
    def stored(self) -> bool:
        """False for a computed tensor, which has no bytes of its own."""
        return self.rows is None and self.packed is None

    @property
    def nbytes(self) -> int:
        return sum(blob.nbytes for blob in self.blobs)

    @property
    def n_values(self) -> int:
        return prod(self.shape)

    @property
    def n_rows(self) -> int:
        """Rows are the runs of the last, contiguous dimension; a scalar is one row of one value."""
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        rows = self.n_rows
        return self.nbytes // rows if rows else 0

    def renamed(self, name: str) -> Tensor:
        return replace(self, name=name)

    def chunks(self, size: int = 8 << 20) -> Iterator[Blob]:
        """The blobs, cut to runs of at most `size` bytes, in order."""
        for blob in self.blobs:
            for start in range(0, blob.nbytes, size):
                yield Blob(blob.path, blob.offset + start, min(size, blob.nbytes - start))

    def read(self, start: int = 0, nbytes: int | None = None) -> bytes:
        """Raw bytes [start, start + nbytes) of the tensor (all of them by default)."""
        stop = self.nbytes if nbytes is None else start + nbytes
        if self.packed is not None:
            size = max(self.row_bytes, 1)
            low = start // size
            return self.packed(low, -(-stop // size))[start - low * size : stop - low * size]
        parts: list[bytes] = []
        at = 0
        for blob in self.blobs:
            low, high = max(start, at), min(stop, at + blob.nbytes)
            if low < high:
                parts.append(read_blob(Blob(blob.path, blob.offset + low - at, high - low), self.name))
            at += blob.nbytes
        return parts[0] if len(parts) == 1 else b"".join(parts)


def read_blob(blob: Blob, name: str = "") -> bytes:
    """The bytes of one blob. Raises CorruptError when the file ends before the blob does."""
    need(blob.path, blob.offset, blob.nbytes)
    with open(blob.path, "rb", buffering=0) as file:
        file.seek(blob.offset)
        parts: list[bytes] = []
        left = blob.nbytes
        while left:  # a read gives 2 GB at most
            part = file.read(left)
            if not part:
                size = os.fstat(file.fileno()).st_size
                raise CorruptError(
                    f"tensor {name} ends at byte {blob.offset + blob.nbytes}, the file at {size}",
                    where=blob.path,
                    hint="download the file again",
                )
            parts.append(part)
            left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
