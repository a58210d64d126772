"""Weights that are not tensors of their values: what the decoder asks of one, and the one that stays in its file.

`Packed` is for models larger than memory: a matrix stays as the file stores it and is decoded each time it is used.
Decoding gives the values that loading would have given, so the logits have the same bits either way. What is held in
memory is one decoded matrix at a time (of experts: one expert); the file is mapped, and read again for every use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from mtptools.decoder.parts import CHUNK_VALUES, Part, cut, fill
from mtptools.decoder.runs import Runs

__all__ = ["Held", "Packed", "Weight", "at_once", "dense", "here", "how_held", "label", "matrix"]


class Held(Protocol):
    """A matrix [N, K] or stack [n, N, K] held in another form than a tensor of its values, which `dense` makes."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the values, and of products."""

    @property
    def device(self) -> torch.device: ...

    @property
    def how(self) -> str:
        """One of `load.HOW`."""

    @property
    def label(self) -> str:
        """What products depend on beside the shape: the dtype, and how the values are stored where it matters."""

    @property
    def at_once(self) -> bool:
        """Does `grouped` multiply?"""

    def numel(self) -> int: ...

    def dense(self) -> Tensor: ...

    def here(self) -> Weight:
        """In the device's memory, to multiply with many times."""

    def matrix(self, index: int) -> Held:
        """One of a stack."""

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        """One matrix of a stack, a range of rows, or the rows of a tensor of ids; decoded."""

    def picked(self, runs: Sequence[tuple[int, int]]) -> Held:
        """The rows [start, stop) of every run, in order; of a matrix."""

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """x [rows, K] float32 times the matrix, both rounded to `dtype`: float32 [rows, N]. None: decode it first."""

    def grouped(self, x: Tensor, runs: Runs) -> Tensor | None:
        """As `product`, of rows that stand sorted by the matrix of the stack that each is multiplied with."""

    def each(self, x: Tensor, experts: Tensor) -> Tensor | None:
        """As `product`, of every row [rows, K] and the matrices int32 [rows * used] that it meets: [rows * used, N]."""


Weight: TypeAlias = "Tensor | Held"


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

    @property
    def how(self) -> str:
        return "stored"

    @property
    def label(self) -> str:
        return _name(self.dtype)

    @property
    def at_once(self) -> bool:
        return False

    def numel(self) -> int:
        return prod(self.shape)

    def dense(self) -> Tensor:
        out = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        fill(out.view(-1, self.shape[-1]), self.parts, self.where)
        return out

    def here(self) -> Tensor:
        return self.dense()

    def matrix(self, index: int) -> Packed:
        return self._range(index, index + 1, self.shape[1:])

    def picked(self, runs: Sequence[tuple[int, int]]) -> Packed:
        parts = tuple(part for start, stop in runs for part in cut(self.parts, start, stop))
        return replace(self, parts=parts, shape=(sum(stop - start for start, stop in runs), self.shape[1]))

    def equals(self, other: Weight) -> bool:
        """Has a matrix in memory the same values? A part of the rows at a time, up to the first that differ."""
        step = max(1, CHUNK_VALUES // self.shape[-1])
        starts = range(0, self.shape[0], step)
        fits = sum(part.n_rows for part in self.parts) == self.shape[0]
        return fits and all(torch.equal(self[at : at + step], other[at : at + step]) for at in starts)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        if isinstance(index, Tensor):
            return torch.cat([self[row : row + 1] for row in index.tolist()])
        if not isinstance(index, slice):
            return self.matrix(index).dense()
        start, stop, _ = index.indices(self.shape[0])
        return self._range(start, stop, (stop - start, *self.shape[1:])).dense()

    def _range(self, start: int, stop: int, shape: tuple[int, ...]) -> Packed:
        """[start, stop) of the first dimension."""
        height = prod(self.shape[1:-1])
        return replace(self, parts=cut(self.parts, start * height, stop * height), shape=shape)

    def product(self, x: Tensor, dtype: torch.dtype) -> None:
        return None

    def grouped(self, x: Tensor, runs: Runs) -> None:
        return None

    def each(self, x: Tensor, experts: Tensor) -> None:
        return None


def dense(weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.dense()


def here(weight: Weight) -> Weight:
    return weight if isinstance(weight, Tensor) else weight.here()


def matrix(stack: Weight, index: int) -> Weight:
    """One matrix of a stack, held as the stack is."""
    return stack[index] if isinstance(stack, Tensor) else stack.matrix(index)


def at_once(stack: Weight) -> bool:
    """Is there one launch for all experts?"""
    return not isinstance(stack, Tensor) and stack.at_once


def how_held(weight: Weight) -> str:
    return "loaded" if isinstance(weight, Tensor) else weight.how


def label(weight: Weight) -> str:
    return _name(weight.dtype) if isinstance(weight, Tensor) else weight.label


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
