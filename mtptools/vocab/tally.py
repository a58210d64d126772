"""Texts of a domain to counts of token ids, in one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import TokenizerError
from mtptools.vocab.encoder import Encoder
from mtptools.vocab.seen import Seen
from mtptools.vocab.words import END, Words

__all__ = ["Job", "Tally"]

MOST_WORDS: Final = 400_000
"""Distinct words held before they are encoded: about 60 MB."""
AT_ONCE: Final = 4_000  # words encoded together: what the library returns for each is large


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
        self.seen = (Seen(), Seen())

    def add(self, job: Job) -> None:
        """Raises TokenizerError: a token id of `size` or more."""
        if job.domain != self.domain:
            self._close()
            self.domain = job.domain
            self.tokens.setdefault(job.domain, np.zeros((2, self.size), np.int64))
        for part, texts in enumerate(job.texts):
            self.nbytes[job.domain] += sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
            whole = texts if self.words is None else [text for text in texts if END in text]
            self._put(part, self.encoder.texts(whole), [1] * len(whole))
            if self.words is not None and len(whole) < len(texts):
                self.seen[part].add(self.words.cut([text for text in texts if END not in text] if whole else texts))
        if sum(len(seen) for seen in self.seen) > MOST_WORDS:
            self._close()

    def sums(self) -> dict[str, tuple[NDArray[np.int64], int]]:
        """domain -> tokens [2, size] (train, held out), bytes of UTF-8"""
        self._close()
        return {domain: (tokens, self.nbytes[domain]) for domain, tokens in self.tokens.items()}

    def _close(self) -> None:
        """Encodes the words that are held."""
        if self.words is None:
            return
        train, held = (seen.words() for seen in self.seen)
        distinct = [*train, *(word for word in held if word not in train)]
        for start in range(0, len(distinct), AT_ONCE):
            words = distinct[start : start + AT_ONCE]
            ids = self.encoder.words(words, self.words)
            for part, seen in enumerate((train, held)):
                self._put(part, ids, [seen.get(word, 0) for word in words])
        self.seen = (Seen(), Seen())

    def _put(self, part: int, ids: Sequence[Sequence[int]], times: Sequence[int]) -> None:
        flat = np.fromiter(chain.from_iterable(ids), np.int64)
        if len(flat) and int(flat.max()) >= self.size:
            raise TokenizerError(
                f"the tokenizer makes token {int(flat.max())} of this text, and the model has {self.size}",
                hint="use the tokenizer of this very model",
            )
        weights = np.repeat(np.asarray(times, np.float64), [len(row) for row in ids])
        # Sums of whole numbers below 2**53: exact.
        self.tokens[self.domain][part] += np.bincount(flat, weights, self.size).astype(np.int64)
