"""Tensors made of other tensors, lazily: stacked, cut, joined, turned.

What is only another order of whole rows is a new list of blobs: exact for every codec, and no byte is decoded.
Anything else is computed from decoded rows when they are asked for. Rows of float types go through float32 and back
without loss, so a computed tensor of floats keeps its type; one of quantized values has the type F32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import CODECS, decode
from mtptools.errors import CorruptError
from mtptools.tensors import NOWHERE, Blob, Packed, Rows, Tensor

__all__ = [
    "computed",
    "gathered",
    "join_columns",
    "join_rows",
    "pick_columns",
    "pick_rows",
    "repacked",
    "reshaped",
    "same_values",
    "stack",
    "transposed",
]


_WINDOW: Final = 4 << 20  # bytes read at a time to pick rows from
_FLOATS: Final = frozenset(("F32", "BF16", "F16"))


def _nowhere(shape: tuple[int, ...], codec: str) -> tuple[Blob]:
    return (Blob(NOWHERE, 0, prod(shape[:-1]) * CODECS[codec].row_bytes(shape[-1] if shape else 1)),)


def computed(name: str, shape: tuple[int, ...], codec: str, rows: Rows) -> Tensor:
    """A tensor whose rows `rows(start, stop)` makes, leading dimensions flattened."""
    return Tensor(name, shape, codec, _nowhere(shape, codec), rows)


def repacked(name: str, shape: tuple[int, ...], codec: str, packed: Packed) -> Tensor:
    """A tensor of which `packed(start, stop)` makes the bytes of rows: the same values as stored, laid out anew."""
    return Tensor(name, shape, codec, _nowhere(shape, codec), packed=packed)


def _float_codec(tensors: Sequence[Tensor]) -> str:
    """The type that holds the values of all of these without loss."""
    codecs = {tensor.codec for tensor in tensors}
    return codecs.pop() if len(codecs) == 1 and codecs <= _FLOATS else "F32"


def _alike(tensors: Sequence[Tensor]) -> None:
    """Refuse tensors whose rows do not fit below each other: of other lengths, or quantized blocks of several types."""
    first = tensors[0]
    for other in tensors[1:]:
        types = {first.codec, other.codec}
        if other.shape[1:] != first.shape[1:] or (len(types) > 1 and not types <= _FLOATS):
            raise CorruptError(
                f"cannot join {other.name} {other.codec}{list(other.shape)} and {first.name} "
                f"{first.codec}{list(first.shape)}",
                where=first.blobs[0].path,
                hint="every expert of a layer has one shape and one type: take the head from one release",
            )


def join_rows(tensors: Sequence[Tensor], shape: tuple[int, ...], name: str) -> Tensor:
    """The rows of all tensors, one tensor after the other, as one tensor of `shape`."""
    _alike(tensors)
    if all(tensor.stored and tensor.codec == tensors[0].codec for tensor in tensors):
        return Tensor(name, shape, tensors[0].codec, _merged(blob for tensor in tensors for blob in tensor.blobs))
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + tensor.n_rows)

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        parts = [
            decode(tensor, max(start - low, 0), min(stop, high) - low)
            for tensor, (low, high) in zip(tensors, pairwise(starts), strict=True)
            if low < stop and start < high
        ]
        return np.concatenate(parts)

    return computed(name, shape, _float_codec(tensors), rows)


def stack(tensors: Sequence[Tensor], name: str) -> Tensor:
    """n tensors of one shape as one tensor [n, *shape]."""
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape != first.shape:
            raise CorruptError(
                f"cannot stack {other.name} {list(other.shape)} on {first.name} {list(first.shape)}",
                where=first.blobs[0].path,
                hint="every expert of a layer has one shape: take the head from one release",
            )
    return join_rows(tensors, (len(tensors), *first.shape), name)


def pick_rows(tensor: Tensor, ranges: Sequence[tuple[int, int]], shape: tuple[int, ...], name: str) -> Tensor:
    """The rows of the given [start, stop) ranges, in that order, as a new tensor of `shape`."""
    if tensor.stored:
        size = tensor.row_bytes
        blobs = _merged(blob for low, high in ranges for blob in _byte_range(tensor, low * size, high * size))
        return Tensor(name, shape, tensor.codec, blobs)
    starts = [0]
    for low, high in ranges:
        starts.append(starts[-1] + high - low)

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        parts = [
            decode(tensor, low + max(start - at, 0), low + min(stop, end) - at)
            for (low, _), (at, end) in zip(ranges, pairwise(starts), strict=True)
            if at < stop and start < end
        ]
        return np.concatenate(parts)

    return computed(name, shape, tensor.codec, rows)


def gathered(tensor: Tensor, rows: NDArray[np.int64], name: str) -> Tensor:
    """Rows `rows`, ascending, of a matrix [n_rows, columns], as [len(rows), columns]: the same bytes, in any codec.

    One pass over the matrix: windows of it are read and rows picked from them, so that many rows cost no more reads
    than all of them would.
    """
    shape = (len(rows), tensor.shape[-1])
    if tensor.rows is not None:

        def values(start: int, stop: int) -> NDArray[np.float32]:
            parts = [decode(tensor, low, high)[picked] for low, high, picked in _windows(rows[start:stop], tensor)]
            return np.concatenate(parts)

        return computed(name, shape, tensor.codec, values)
    size = tensor.row_bytes

    def packed(start: int, stop: int) -> bytes:
        parts = []
        for low, high, picked in _windows(rows[start:stop], tensor):
            window = np.frombuffer(tensor.read(low * size, (high - low) * size), np.uint8)
            parts.append(window.reshape(high - low, size)[picked].tobytes())
        return b"".join(parts)

    return repacked(name, shape, tensor.codec, packed)


def _windows(rows: NDArray[np.int64], tensor: Tensor) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    """(first row, last row + 1, the wanted rows less the first) of windows of at most `_WINDOW` bytes."""
    most = max(1, _WINDOW // max(tensor.row_bytes, 1))
    at = 0
    while at < len(rows):
        first = int(rows[at])
        end = int(np.searchsorted(rows, first + most))
        far = np.flatnonzero(np.diff(rows[at:end]) > most // 4)
        if len(far):  # nothing between is wanted: skip it
            end = at + int(far[0]) + 1
        yield first, int(rows[end - 1]) + 1, rows[at:end] - first
        at = end


def reshaped(tensor: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """The same values in the same order under another shape."""
    if tensor.stored and (CODECS[tensor.codec].block_values == 1 or shape[-1] == tensor.shape[-1]):
        return Tensor(name, shape, tensor.codec, tensor.blobs)
    columns = shape[-1]

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        old = tensor.shape[-1]
        first, last = start * columns, stop * columns
        low = first // old
        values = decode(tensor, low, -(-last // old)).reshape(-1)
        return values[first - low * old : last - low * old].reshape(-1, columns)

    return computed(name, shape, _float_codec([tensor]), rows)


def transposed(tensor: Tensor, name: str) -> Tensor:
    """[…, rows, columns] as […, columns, rows]; one matrix is in memory at a time."""
    *lead, n_rows, n_columns = tensor.shape

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        parts = []
        for matrix in range(start // n_columns, -(-stop // n_columns)):
            at = matrix * n_columns
            turned = decode(tensor, matrix * n_rows, (matrix + 1) * n_rows).T
            parts.append(turned[max(start - at, 0) : stop - at])
        return np.ascontiguousarray(np.concatenate(parts))

    return computed(name, (*lead, n_columns, n_rows), _float_codec([tensor]), rows)


def join_columns(tensors: Sequence[Tensor], name: str) -> Tensor:
    """Matrices of as many rows side by side."""
    first = tensors[0]
    for other in tensors[1:]:
        if other.shape[:-1] != first.shape[:-1]:
            raise CorruptError(
                f"cannot put {other.name} {list(other.shape)} beside {first.name} {list(first.shape)}",
                hint="download the release again",
            )

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        return np.concatenate([decode(tensor, start, stop) for tensor in tensors], axis=1)

    width = sum(tensor.shape[-1] for tensor in tensors)
    return computed(name, (*first.shape[:-1], width), _float_codec(tensors), rows)


def pick_columns(tensor: Tensor, order: Sequence[int] | slice, name: str) -> Tensor:
    """The columns of `order`, in that order."""
    picked = np.arange(tensor.shape[-1])[order]

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        return np.ascontiguousarray(decode(tensor, start, stop)[:, picked])

    return computed(name, (*tensor.shape[:-1], len(picked)), _float_codec([tensor]), rows)


def same_values(left: Tensor, right: Tensor) -> bool:
    """Do two tensors hold the same values? Decoded a few rows at a time."""
    if left.shape != right.shape:
        return False
    step = max(1, (1 << 20) // max(left.shape[-1] if left.shape else 1, 1))
    ranges = [(start, min(start + step, left.n_rows)) for start in range(0, left.n_rows, step)]
    return all(np.array_equal(decode(left, *rows), decode(right, *rows), equal_nan=True) for rows in ranges)


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
