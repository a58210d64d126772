"""A matrix that stays as the file stores it and is decoded each time it is used, for models larger than memory.

Decoding gives the values that loading would have given, so the logits have the same bits either way. What is held in
memory is one decoded matrix at a time (of experts: one expert); the file is mapped, and read again for every use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from mtptools.decoder.parts import CHUNK_VALUES, Part, fill

__all__ = ["Packed", "Weight", "dense"]


@dataclass(frozen=True, slots=True)
class Packed:
    """parts  what it is made of, one under the other;  shape  [rows, columns] or [n, rows, columns]
    dtype  of the decoded values;  where  the checkpoint, for errors
    """

    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    where: object

    def numel(self) -> int:
        return prod(self.shape)

    def dense(self) -> Tensor:
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        fill(out.view(-1, self.shape[-1]), self.parts, self.where)
        return out

    def picked(self, runs: Sequence[tuple[int, int]]) -> Packed:
        """The rows [start, stop) of every run, in order; of a matrix."""
        parts = tuple(part for start, stop in runs for part in _cut(self.parts, start, stop))
        return replace(self, parts=parts, shape=(sum(stop - start for start, stop in runs), self.shape[1]))

    def equals(self, other: Tensor) -> bool:
        """Has a matrix in memory the same values? A part of the rows at a time, up to the first that differ."""
        step = max(1, CHUNK_VALUES // self.shape[-1])
        starts = range(0, self.shape[0], step)
        fits = sum(part.n_rows for part in self.parts) == self.shape[0]
        return fits and all(torch.equal(self[at : at + step], other[at : at + step]) for at in starts)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        """One matrix of a stack, a range of rows, or the rows of a tensor of ids; decoded."""
        if isinstance(index, Tensor):
            return torch.cat([self[row : row + 1] for row in index.tolist()])
        height = prod(self.shape[1:-1])
        start, stop, _ = index.indices(self.shape[0]) if isinstance(index, slice) else (index, index + 1, 1)
        rows = _cut(self.parts, start * height, stop * height)
        shape = (stop - start, *self.shape[1:]) if isinstance(index, slice) else self.shape[1:]
        return Packed(rows, shape, self.dtype, self.device, self.where).dense()


Weight = Tensor | Packed


def dense(weight: Weight) -> Tensor:
    return weight.dense() if isinstance(weight, Packed) else weight


def _cut(parts: Sequence[Part], start: int, stop: int) -> tuple[Part, ...]:
    """The rows [start, stop) of parts that stand one under the other."""
    out, at = [], 0
    for part in parts:
        low, high = max(start - at, 0), min(stop - at, part.n_rows)
        if low < high:
            out.append(part if high - low == part.n_rows else part.rows(low, high))
        at += part.n_rows
    return tuple(out)
