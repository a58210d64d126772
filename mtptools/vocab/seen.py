"""Distinct words and how often they were seen, most of them as numbers."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.vocab.words import Cut

__all__ = ["Seen"]

SHORT: Final = 8  # bytes: such a word is one number
_MASKS: Final = np.array([(1 << 8 * n) - 1 for n in range(SHORT + 1)], np.uint64)
MERGE: Final = 1 << 20  # numbers gathered before equal ones are brought together


class Seen:
    """A word of up to eight bytes is a number, counted by sorting; no word holds a zero byte. Longer ones are keys."""

    def __init__(self) -> None:
        self.long: Counter[bytes] = Counter()
        self.added: Counter[str] = Counter()
        self.numbers = np.zeros(0, np.uint64)
        self.times = np.zeros(0, np.int64)
        self.new: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self.gathered = 0

    def __len__(self) -> int:
        return len(self.long) + len(self.numbers) + self.gathered

    def add(self, cut: Cut) -> None:
        self.added.update(cut.added)
        sizes = cut.ends - cut.starts
        short = sizes <= SHORT
        padded = cut.data + bytes(SHORT)
        eights = np.ndarray((len(cut.data) + 1,), np.dtype("<u8"), padded, 0, (1,))  # the eight bytes from each byte on
        found, times = np.unique(eights[cut.starts[short]] & _MASKS[sizes[short]], return_counts=True)
        self.new.append((found, times))
        self.gathered += len(found)
        if self.gathered > MERGE:
            self._merge()
        long = ~short
        ranges = zip(cut.starts[long].tolist(), cut.ends[long].tolist(), strict=True)
        self.long.update([cut.data[start:end] for start, end in ranges])

    def words(self) -> dict[str, int]:
        """word -> how often"""
        self._merge()
        rows = self.numbers.astype("<u8").view(f"S{SHORT}")  # numpy drops the zeros behind
        out = {word.decode(): times for word, times in zip(rows.tolist(), self.times.tolist(), strict=True)}
        out |= {word.decode(): times for word, times in self.long.items()}
        return out | self.added  # tokens that are matched whole are no words: nothing is cut into one

    def _merge(self) -> None:
        every = [(self.numbers, self.times), *self.new]
        self.numbers, which = np.unique(np.concatenate([numbers for numbers, _ in every]), return_inverse=True)
        times = np.concatenate([times for _, times in every])
        self.times = np.bincount(which, times, len(self.numbers)).astype(np.int64)
        self.new, self.gathered = [], 0
