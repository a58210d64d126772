"""A draft vocabulary: the tokens that a reduced head can draft, and the two ways to write it down.

Row i of a reduced output matrix belongs to one token of the target's vocabulary. Runtimes disagree on how to say which:
`d2t` holds the token's id itself (llama.cpp's `d2t`, SGLang's token map, plain lists: *absolute*), or the id less i
(EAGLE-3's `d2t`: *offsets*). Both are int64 of the same length and one read as the other still gives ids in range, so
each is a type of its own here and only this module turns one into the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import InputError

__all__ = ["Absolute", "DraftVocabulary", "Offsets", "Problem", "absolute", "problems"]

Absolute = NewType("Absolute", NDArray[np.int64])
"""[n] target id of each draft row."""

Offsets = NewType("Offsets", NDArray[np.int64])
"""[n] target id of each draft row, less the row's number."""

Problem = tuple[str, str]
"""(what is wrong, evidence)"""


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """ids   [n] int64, absolute, ascending, no two alike
    size  of the target's vocabulary: rows of its embedding
    """

    ids: Absolute
    size: int

    @classmethod
    def of(cls, ids: Absolute, size: int, where: object = None) -> DraftVocabulary:
        """Checked. Raises InputError that says everything that is wrong with it."""
        wrong = problems(ids, size)
        if wrong:
            raise InputError(
                "no draft vocabulary: " + "; ".join(f"{what} ({evidence})" for what, evidence in wrong),
                where=where,
                hint="is it of this model, and absolute ids where these are meant? mtptools prune-vocab --help",
            )
        return cls(Absolute(np.ascontiguousarray(ids, dtype=np.int64)), size)

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, DraftVocabulary) and self.size == other.size
        return same and np.array_equal(self.ids, other.ids)  # type: ignore[attr-defined]

    @property
    def share(self) -> float:
        """Of the target's vocabulary."""
        return len(self) / self.size

    @cached_property
    def offsets(self) -> Offsets:
        """EAGLE-3's `d2t`."""
        return Offsets(self.ids - np.arange(len(self.ids), dtype=np.int64))

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """EAGLE-3's `t2d` [size]: may this target token be drafted?"""
        out = np.zeros(self.size, dtype=np.bool_)
        out[self.ids] = True
        return out

    def runs(self) -> list[tuple[int, int]]:
        """Its ids as [start, stop) ranges, in order."""
        cuts = np.flatnonzero(np.diff(self.ids) != 1) + 1
        parts: list[Any] = np.split(self.ids, cuts) if len(self.ids) else []
        return [(int(part[0]), int(part[-1]) + 1) for part in parts]

    def within(self, wider: DraftVocabulary, where: object = None) -> DraftVocabulary:
        """These tokens by their rows in the matrix of a head that is reduced to `wider` already.

        Raises InputError when a token has no row there.
        """
        rows = np.searchsorted(wider.ids, self.ids)
        lost = self.ids[(rows == len(wider)) | (wider.ids[np.minimum(rows, len(wider) - 1)] != self.ids)]
        if len(lost):
            raise InputError(
                f"the head cannot draft {len(lost)} of these {len(self)} tokens any more, {int(lost[0])} the first: it "
                f"is reduced to {len(wider)} already",
                where=where,
                hint="take the head it was made from, or give it back: prune-vocab --restore DONOR",
            )
        return DraftVocabulary(Absolute(rows.astype(np.int64)), len(wider))


def absolute(offsets: Offsets) -> Absolute:
    return Absolute(offsets + np.arange(len(offsets), dtype=np.int64))


def problems(ids: Absolute, size: int) -> list[Problem]:
    """What keeps absolute ids [n] from being a draft vocabulary of a target with `size` tokens."""
    if ids.ndim != 1 or not len(ids):
        return [("it holds no list of ids", f"shape {list(ids.shape)}")]
    out: list[Problem] = []
    wild = ids[(ids < 0) | (ids >= size)]
    if len(wild):
        out.append(("ids out of range", f"{len(wild)} of them, {int(wild[0])} the first; the vocabulary has {size}"))
    step = np.diff(ids)
    if (step < 0).any():
        at = int(np.argmax(step < 0))
        out.append(("ids are not in ascending order", f"{int(ids[at])} stands before {int(ids[at + 1])}"))
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        twice = values[counts > 1]
        out.append(("ids stand more than once", f"{len(twice)} of them, {int(twice[0])} the first"))
    return out
