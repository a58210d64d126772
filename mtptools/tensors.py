"""Where values are stored, before anything is read.

A `Blob` is a run of bytes in one file. A `Tensor` is one logical weight: the bytes of its blobs, one after
the other, are its rows in order. Stacking experts and cutting a fused matrix in two are therefore only new
lists of blobs, exact for every codec whose rows are whole blocks, and nothing is read until rows are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from mtptools.errors import CorruptError

__all__ = ["Blob", "Tensor", "pick_rows", "read_blob", "stack"]


@dataclass(frozen=True, slots=True)
class Blob:
    """`nbytes` bytes at `offset` of the file `path`."""

    path: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One logical weight.

    name   as its container spells it
    shape  torch order, slowest dimension first (GGUF's `ne` reversed)
    codec  bit layout of the values, a key of `mtptools.codecs.CODECS`: "F32", "BF16", "Q4_K" …
    blobs  where the bytes are; their concatenation is the rows in order
    """

    name: str
    shape: tuple[int, ...]
    codec: str
    blobs: tuple[Blob, ...]

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
    with open(blob.path, "rb", buffering=0) as file:
        data = bytearray(blob.nbytes)
        view, got = memoryview(data), 0
        file.seek(blob.offset)
        while got < blob.nbytes:
            n = file.readinto(view[got:])
            if not n:
                size = os.fstat(file.fileno()).st_size
                raise CorruptError(
                    f"tensor {name} ends at byte {blob.offset + blob.nbytes}, the file at {size}",
                    where=blob.path,
                    hint="download the file again",
                )
            got += n
    return bytes(data)


def _byte_range(tensor: Tensor, start: int, stop: int) -> Iterator[Blob]:
    at = 0
    for blob in tensor.blobs:
        low, high = max(start, at), min(stop, at + blob.nbytes)
        if low < high:
            yield Blob(blob.path, blob.offset + low - at, high - low)
        at += blob.nbytes


def _merged(blobs: Iterator[Blob]) -> tuple[Blob, ...]:
    out: list[Blob] = []
    for blob in blobs:
        last = out[-1] if out else None
        if last and last.path == blob.path and last.offset + last.nbytes == blob.offset:
            out[-1] = Blob(last.path, last.offset, last.nbytes + blob.nbytes)
        else:
            out.append(blob)
    return tuple(out)


def stack(tensors: Sequence[Tensor], name: str) -> Tensor:
    """n tensors of one shape and codec as one tensor [n, *shape]."""
    first = tensors[0]
    for other in tensors[1:]:
        if (other.shape, other.codec) != (first.shape, first.codec):
            raise CorruptError(
                f"cannot stack {other.name} {other.codec}{list(other.shape)} on {first.name} "
                f"{first.codec}{list(first.shape)}",
                hint="every expert of a layer has one shape and one type",
            )
    blobs = _merged(blob for tensor in tensors for blob in tensor.blobs)
    return Tensor(name, (len(tensors), *first.shape), first.codec, blobs)


def pick_rows(tensor: Tensor, ranges: Sequence[tuple[int, int]], shape: tuple[int, ...], name: str) -> Tensor:
    """The rows of the given [start, stop) ranges, in that order, as a new tensor of `shape`."""
    size = tensor.row_bytes
    blobs = _merged(blob for start, stop in ranges for blob in _byte_range(tensor, start * size, stop * size))
    return Tensor(name, shape, tensor.codec, blobs)
