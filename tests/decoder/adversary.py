"""A lane whose copies do what a GPU's may do at worst: begin as early as they can, and land as late as they can.

The computing of a GPU is later than its being issued. So from its sight a copy may begin before the host issues it: as
soon as the mark that it waits for is reached, and the copies before it are done. From then on there is nothing sensible
where it goes to, until it lands: when the computing waits for it, or at some other time before that. To know what will
be issued, the same thing is done twice: the second time with what was `issued` in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

__all__ = ["Adversary", "Deaf", "Early", "Hasty", "Issued"]

POISON = 0xAA
"""A byte that makes no NaN and no infinity of any type, so that what went wrong is seen in bits alone."""

Issued = list[tuple[int, list[tuple[int, int, int]]]]
"""Of each copy: the mark that it waits for, and (arena, start, stop) of the bytes that it writes."""


@dataclass
class _Copy:
    pairs: Sequence[tuple[Tensor, Tensor]]
    landed: bool = False


class Adversary:
    """A mark of the computing is the number of marks so far, one of copies is the number of the copy."""

    def __init__(self, foreseen: Issued | None = None, seed: int = 0) -> None:
        self.foreseen, self.random = foreseen, Random(seed)
        self.issued: Issued = []
        self.copies: list[_Copy] = []
        self.arenas: list[Tensor] = []
        self.marks = self.begun = 0
        self.early = 0

    def arena(self, nbytes: int) -> Tensor:
        self.arenas.append(torch.full((nbytes,), POISON, dtype=torch.uint8))
        return self.arenas[-1]

    def reached(self) -> int:
        self.marks += 1
        self._begin()
        self._land(self.random.randrange(len(self.copies) + 1))
        return self.marks

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: int) -> int:
        number = len(self.copies)
        self.issued.append((after, [self._place(to) for to, _ in pairs]))
        self.copies.append(_Copy(pairs))
        if self.foreseen is not None:
            assert self.foreseen[number] == self.issued[number], "the second time something else was done"
        self._begin()
        return number

    def wait(self, landed: int) -> None:
        self._land(landed + 1)

    def _place(self, to: Tensor) -> tuple[int, int, int]:
        for number, arena in enumerate(self.arenas):
            start = to.data_ptr() - arena.data_ptr()
            if 0 <= start < arena.nbytes:
                assert start + to.nbytes <= arena.nbytes
                return number, start, start + to.nbytes
        raise AssertionError("a copy to other memory than an arena")

    def _begin(self) -> None:
        """What may begin now does: copies in their order."""
        known = self.issued if self.foreseen is None else self.foreseen
        while self.begun < len(known) and known[self.begun][0] <= self.marks:
            for arena, start, stop in known[self.begun][1]:
                self.arenas[arena][start:stop] = POISON
            self.early += self.begun >= len(self.copies)
            self.begun += 1

    def _land(self, stop: int) -> None:
        """Copies up to `stop`. One whose arena a later copy has begun to write was there, and is no more."""
        for number, copy in enumerate(self.copies[: min(stop, self.begun)]):
            if copy.landed:
                continue
            copy.landed = True
            later = {arena for _, places in self._begun_after(number) for arena, _, _ in places}
            if not later & {arena for arena, _, _ in self.issued[number][1]}:
                for to, source in copy.pairs:
                    to.copy_(source)

    def _begun_after(self, number: int) -> Issued:
        return (self.issued if self.foreseen is None else self.foreseen)[number + 1 : self.begun]


class Deaf(Adversary):
    """A fault: the computing does not wait for copies."""

    def wait(self, landed: int) -> None:
        pass


class Hasty(Adversary):
    """A fault: copies do not wait for the computing."""

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: int) -> int:
        return super().copy(pairs, 0)


class Early(Adversary):
    """A fault: the mark that copies wait for is that of before the last computing."""

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: int) -> int:
        return super().copy(pairs, after - 1)
