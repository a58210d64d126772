"""Texts of a domain to counts of token ids, in one process and in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import TokenizerError
from mtptools.vocab.encoder import Encoder
from mtptools.vocab.seen import Seen, Times
from mtptools.vocab.words import END, Words

__all__ = ["Job", "Tally"]

MOST: Final = 32 << 20
"""Bytes of distinct words held before they are encoded."""
# What is encoded together, because what the library returns for each token is large (some 100 bytes).
AT_ONCE: Final = 4_000  # words
LETTERS: Final = 1 << 17  # characters, or one text


class Job(NamedTuple):
    """texts   (train, held out), each text to be encoded by itself
    nbytes  read from the disk for them
    """

    domain: str
    texts: tuple[list[str], list[str]]
    nbytes: int


class Tally:
    """Adds jobs up."""

    def __init__(self, encoder: Encoder, words: Words | None, size: int) -> None:
        """words  None: every text is encoded whole"""
        self.encoder = encoder
        self.words = words
        self.size = size
        self.tokens: dict[str, NDArray[np.int64]] = {}
        self.nbytes: Counter[str] = Counter()
        self.domain = ""
        self.seen = Seen()

    def add(self, job: Job) -> None:
        """Raises TokenizerError: a token id of `size` or more."""
        if job.domain != self.domain:
            self._close()
            self.domain = job.domain
            self.tokens.setdefault(job.domain, np.zeros((2, self.size), np.int64))
        for side, texts in enumerate(job.texts):
            self.nbytes[job.domain] += sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
            whole = texts if self.words is None else [text for text in texts if END in text]
            self._count(_once(whole, side), self.encoder.texts)
            if self.words is not None and len(whole) < len(texts):
                cut = self.words.cut([text for text in texts if END not in text] if whole else texts)
                self._count(_once(self.seen.add(cut, side), side), self._encoded)
        if self.seen.nbytes > MOST:
            self._close()

    def sums(self) -> dict[str, tuple[NDArray[np.int64], int]]:
        """domain -> tokens [2, size] (train, held out), bytes of UTF-8"""
        self._close()
        return {domain: (tokens, self.nbytes[domain]) for domain, tokens in self.tokens.items()}

    def _close(self) -> None:
        """Encodes the words that are held."""
        self._count(self.seen, self._encoded)
        self.seen = Seen()

    def _encoded(self, words: Sequence[str]) -> list[list[int]]:
        return self.encoder.texts(words) if self.words is None else self.encoder.words(words, self.words)

    def _count(self, texts: Iterable[Times], encoded: Callable[[Sequence[str]], list[list[int]]]) -> None:
        for some in _batches(texts):
            ids = encoded([one.word for one in some])
            flat = np.fromiter(chain.from_iterable(ids), np.int64)
            if len(flat) and int(flat.max()) >= self.size:
                raise TokenizerError(
                    f"the tokenizer makes token {int(flat.max())} of this text, and the model has {self.size}",
                    hint="use the tokenizer of this very model",
                )
            lengths = [len(row) for row in ids]
            for side, times in enumerate(([one.train for one in some], [one.held for one in some])):
                if any(times):
                    weights = np.repeat(np.asarray(times, np.float64), lengths)
                    # Sums of whole numbers below 2**53: exact.
                    self.tokens[self.domain][side] += np.bincount(flat, weights, self.size).astype(np.int64)


def _once(texts: Sequence[str], side: int) -> Iterator[Times]:
    return (Times(text, 1 - side, side) for text in texts)


def _batches(texts: Iterable[Times]) -> Iterator[list[Times]]:
    some: list[Times] = []
    letters = 0
    for one in texts:
        if some and (len(some) == AT_ONCE or letters + len(one.word) > LETTERS):
            yield some
            some, letters = [], 0
        some.append(one)
        letters += len(one.word)
    if some:
        yield some
