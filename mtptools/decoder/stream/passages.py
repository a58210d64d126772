"""Texts to read in one pass, and which of their positions count."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mtptools.errors import UsageError

__all__ = ["Passage", "Passages"]


@dataclass(frozen=True, slots=True)
class Passage:
    """ids    token ids, at least two
    start  tokens before it are a prompt, which is read and not counted
    """

    ids: tuple[int, ...]
    start: int = 1


@dataclass(frozen=True, slots=True)
class Passages:
    """Passages one behind the other, as rows of one matrix of states."""

    all: tuple[Passage, ...]

    @classmethod
    def cut(cls, texts: Sequence[Passage], positions: int, window: int) -> Passages:
        """The first `positions` tokens of the texts in turn, none longer than `window`: a longer text goes on anew.

        A text's prompt is kept whole, in front. Raises UsageError when nothing of two tokens is left.
        """
        out: list[Passage] = []
        left = positions
        for text in texts:
            for at in range(0, len(text.ids), window):
                ids = text.ids[at : at + min(window, left)]
                if len(ids) < 2:
                    break
                out.append(Passage(ids, min(max(text.start - at, 1), len(ids))))
                left -= len(ids)
        if not any(passage.start < len(passage.ids) for passage in out):
            cut = any(text.start < len(text.ids) for text in texts)  # there is one, after what is read
            hint = f"more --positions ({positions}), or a larger --window ({window})" if cut else "a longer --text"
            raise UsageError("there is no token to predict in the text", hint=hint)
        return cls(tuple(out))

    def beginning(self, rows: int) -> Passages:
        """Those of the first rows."""
        parts = [(passage, min(stop, rows) - first) for passage, first, stop in self.bounds()]
        return Passages(tuple(Passage(p.ids[:n], min(p.start, n)) for p, n in parts if n > 1))

    @property
    def ids(self) -> list[int]:
        return [token for passage in self.all for token in passage.ids]

    @property
    def n_rows(self) -> int:
        return sum(len(passage.ids) for passage in self.all)

    def bounds(self) -> Iterator[tuple[Passage, int, int]]:
        """(passage, first row, row after the last)."""
        at = 0
        for passage in self.all:
            yield passage, at, at + len(passage.ids)
            at += len(passage.ids)

    def digest(self) -> str:
        """sha256 over token ids and starts."""
        told = json.dumps([[passage.start, list(passage.ids)] for passage in self.all])
        return hashlib.sha256(told.encode()).hexdigest()
