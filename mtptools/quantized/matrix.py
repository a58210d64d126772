"""A matrix of floats, a chunk of rows at a time: what encodings are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import decode, floats
from mtptools.codecs.floats import rounded
from mtptools.errors import CodecError
from mtptools.quantized.schemes import FLOAT
from mtptools.tensors import Tensor
from mtptools.views import repacked

__all__ = ["Matrix", "largest_of"]

Floats = NDArray[np.float32]

_CHUNK: Final = 1 << 20  # values decoded at a time


@dataclass(frozen=True)
class Matrix:
    """What an encoding is made of.

    source   the values [.., rows, columns]; errors name it
    stem     X of X.weight in the output
    dtype    float type the values are rounded to first
    scales   float type of scales, where the encoding leaves it open
    largest  largest magnitude of all matrices that share a second scale
    """

    source: Tensor
    stem: str
    dtype: str
    scales: str
    largest: Callable[[], np.float32]

    def chunks(self, start: int, stop: int, align: int = 1) -> Iterator[tuple[int, Floats]]:
        """(number of the first row, rows) of all chunks that hold rows [start, stop), cut at multiples of `align`."""
        step = max(align, _CHUNK // max(self.source.shape[-1], 1) // align * align)
        for low in range(start // align * align, stop, step):
            high = min(low + step, -(-stop // align) * align, self.source.n_rows)
            yield low, _rounded(self.source, self.dtype, low, high)

    def part(
        self,
        suffix: str,
        codec: str,
        columns: int,
        make: Callable[[Floats], NDArray[Any]],
        block: int = 1,
        each: int = 1,
    ) -> Tensor:
        """One of the tensors: `make` gives its rows from rows of the matrix, `each` of them a row.

        block  rows of the matrix that `make` must have together
        """
        shape = (*self.source.shape[:-2], -(-self.source.shape[-2] // each), columns)

        def packed(start: int, stop: int) -> bytes:
            out = []
            for low, values in self.chunks(start * each, min(stop * each, self.source.n_rows), block):
                first = low // each
                rows = make(values)[max(start - first, 0) : stop - first]
                out.append(floats.encode(rows, codec) if codec in FLOAT else np.ascontiguousarray(rows).tobytes())
            return b"".join(out)

        return repacked(self.stem + suffix, shape, codec, packed)

    def whole(self, suffix: str, codec: str, shape: tuple[int, ...], make: Callable[[], bytes]) -> Tensor:
        """A tensor that is not made of rows."""
        return repacked(self.stem + suffix, shape, codec, lambda start, stop: make())


def largest_of(matrices: Sequence[Tensor], dtype: str) -> np.float32:
    """The largest magnitude of all of these, rounded to `dtype`."""
    out = np.float32(0)
    for source in matrices:
        for low, high in _ranges(source):
            out = max(out, np.abs(_rounded(source, dtype, low, high)).max(initial=np.float32(0)))
    return np.float32(out)


def _ranges(source: Tensor) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK // max(source.shape[-1], 1))
    for low in range(0, source.n_rows, step):
        yield low, min(low + step, source.n_rows)


def _rounded(source: Tensor, dtype: str, start: int, stop: int) -> Floats:
    with np.errstate(over="ignore"):  # what does not fit becomes infinite
        values = rounded(decode(source, start, stop), dtype)
        if np.isfinite(values).all():
            return values
        wrong = sum(int((~np.isfinite(rounded(decode(source, *rows), dtype))).sum()) for rows in _ranges(source))
    raise CodecError(
        f"{wrong} of {source.n_values} values are NaN or infinite in {dtype}, which no code stands for",
        where=source.name,
        hint="the tensor is damaged: take the head from the release again, or leave this matrix in BF16",
    )
