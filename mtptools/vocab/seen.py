"""Distinct words and how often they were seen on each side, most of them as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtptools.vocab.words import Cut

__all__ = ["LONGEST", "Seen", "Times"]

LONGEST: Final = 1 << 10
"""Bytes of a word that is held: longer ones seldom come again."""
SHORT: Final = 8  # bytes: such a word is one number
MERGE: Final = 1 << 18  # numbers gathered before equal ones are brought together
ROWS: Final = 1 << 16  # numbers turned into words at once
_MASKS: Final = np.array([(1 << 8 * n) - 1 for n in range(SHORT + 1)], np.uint64)
_NUMBER: Final = 24  # bytes that a number takes with its two counts
_KEY: Final = 160  # bytes that a key takes beside its letters, of which the first _COMMON are in it
_COMMON: Final = 32


class Times(NamedTuple):
    """How often a word was seen, on each side."""

    word: str
    train: int
    held: int


class Seen:
    """A word of up to eight bytes is a number, counted by sorting; no word holds a zero byte. Longer ones are keys.

    A side is 0 (train) or 1 (held out).
    """

    def __init__(self) -> None:
        self.long: tuple[Counter[bytes], Counter[bytes]] = (Counter(), Counter())
        self.added: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self.numbers = np.zeros(0, np.uint64)
        self.times = np.zeros((2, 0), np.int64)
        self.new: list[tuple[NDArray[np.uint64], NDArray[np.int64], int]] = []
        self.gathered = 0
        self.letters = 0  # bytes of keys behind _COMMON; of one that comes again, again

    @property
    def nbytes(self) -> int:
        """About what it takes, rather too much."""
        keys = sum(map(len, self.long)) + sum(map(len, self.added))
        return (len(self.numbers) + self.gathered) * _NUMBER + keys * _KEY + self.letters

    def add(self, cut: Cut, side: int) -> list[str]:
        """Returns the words longer than LONGEST, which it does not hold."""
        self.added[side].update(cut.added)
        sizes = cut.ends - cut.starts
        short = sizes <= SHORT
        padded = cut.data + bytes(SHORT)
        eights = np.ndarray((len(cut.data) + 1,), np.dtype("<u8"), padded, 0, (1,))  # the eight bytes from each byte on
        found, times = np.unique(eights[cut.starts[short]] & _MASKS[sizes[short]], return_counts=True)
        self.new.append((found, times, side))
        self.gathered += len(found)
        if self.gathered > MERGE:
            self._merge()
        long, huge = ~short & (sizes <= LONGEST), sizes > LONGEST
        self.long[side].update([cut.data[start:end] for start, end in cut.ranges(long)])
        self.letters += int(np.maximum(sizes[long] - _COMMON, 0).sum())
        return [cut.data[start:end].decode() for start, end in cut.ranges(huge)]

    def __iter__(self) -> Iterator[Times]:
        """Every word once."""
        self._merge()
        for start in range(0, len(self.numbers), ROWS):
            part = slice(start, start + ROWS)
            rows = self.numbers[part].astype("<u8").view(f"S{SHORT}")  # numpy drops the zeros behind
            for word, train, held in zip(rows.tolist(), *self.times[:, part].tolist(), strict=True):
                yield Times(word.decode(), train, held)
        train_keys, held_keys = self.long
        for key, times in train_keys.items():
            yield Times(key.decode(), times, held_keys.get(key, 0))
        yield from (Times(key.decode(), 0, times) for key, times in held_keys.items() if key not in train_keys)
        # Tokens that are matched whole are no words: nothing is cut into one.
        train_added, held_added = self.added
        for token in dict.fromkeys([*train_added, *held_added]):
            yield Times(token, train_added[token], held_added[token])

    def _merge(self) -> None:
        every = [self.numbers, *(found for found, _, _ in self.new)]
        self.numbers, which = np.unique(np.concatenate(every), return_inverse=True)
        rows = [self.times, *(_on_side(times, side) for _, times, side in self.new)]
        weights = np.concatenate(rows, axis=1)
        self.times = np.stack([np.bincount(which, row, len(self.numbers)) for row in weights]).astype(np.int64)
        self.new, self.gathered = [], 0


def _on_side(times: NDArray[np.int64], side: int) -> NDArray[np.int64]:
    out = np.zeros((2, len(times)), np.int64)
    out[side] = times
    return out
