"""Weights that are decoded before they are needed, by `Helpers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from mtptools.decoder.packed import Packed
from mtptools.decoder.stream.helpers import Coming, Helpers

__all__ = ["Awaited", "Experts", "Vocabulary"]


@dataclass(frozen=True, slots=True)
class Awaited(Packed):
    """A matrix that is decoded once, and held as long as this is."""

    helpers: Helpers
    coming: Coming = field(compare=False)

    @classmethod
    def of(cls, matrix: Packed, helpers: Helpers) -> Awaited:
        return cls(matrix.parts, matrix.shape, matrix.dtype, matrix.device, matrix.where, helpers, Coming(matrix))

    def dense(self) -> Tensor:
        return self.helpers.take(self.coming)

    def until(self, row: int) -> Tensor:
        """The matrix, of which the rows before that one are decoded."""
        return self.helpers.take(self.coming, row)

    def picked(self, runs: Sequence[tuple[int, int]]) -> Packed:
        return self.coming.matrix.picked(runs)

    def _range(self, start: int, stop: int, shape: tuple[int, ...]) -> Packed:
        return self.coming.matrix._range(start, stop, shape)


@dataclass(frozen=True, slots=True)
class _Told(Packed):
    """Some of it is decoded at a time. told  what will be asked for next, by its number, and is on its way"""

    helpers: Helpers
    told: dict[int, Awaited] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls: type[_AnyTold], whole: Packed, helpers: Helpers) -> _AnyTold:
        return cls(whole.parts, whole.shape, whole.dtype, whole.device, whole.where, helpers)


_AnyTold = TypeVar("_AnyTold", bound=_Told)


@dataclass(frozen=True, slots=True)
class Experts(_Told):
    """A stack, each matrix of which is decoded when rows meet it: before, where it is told which will be met."""

    def tell(self, index: int) -> Coming:
        """This matrix will be asked for next, once."""
        self.told[index] = Awaited.of(self._one(index), self.helpers)
        return self.told[index].coming

    def matrix(self, index: int) -> Packed:
        return self.told.pop(index, None) or self._one(index)

    def _one(self, index: int) -> Packed:
        return _plain(self)._range(index, index + 1, self.shape[1:])


@dataclass(frozen=True, slots=True)
class Vocabulary(_Told):
    """A matrix of which as many rows are asked for at a time, from the first to the last: what follows is decoded."""

    def picked(self, runs: Sequence[tuple[int, int]]) -> Packed:
        (start, stop), several = runs[0], len(runs) > 1
        if not start and not several:
            self._tell(stop)
        known = None if several else self.told.pop(start, None)
        return known if known is not None and known.shape[0] == stop - start else _plain(self).picked(runs)

    def _tell(self, step: int) -> None:
        """All of it will be asked for, so many rows at a time."""
        self.helpers.forget(one.coming for one in self.told.values())
        self.told.clear()
        for start in range(0, self.shape[0], step):
            rows = _plain(self).picked([(start, min(start + step, self.shape[0]))])
            self.told[start] = Awaited.of(rows, self.helpers)
        self.helpers.expect(one.coming for one in self.told.values())


def _plain(weight: Packed) -> Packed:
    return Packed(weight.parts, weight.shape, weight.dtype, weight.device, weight.where)
