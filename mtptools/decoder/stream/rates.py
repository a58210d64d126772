"""From drafts on a given text to acceptance.

A draft is right when it is what the trunk would choose. Whether the one after it matters is known only where the text
goes on with it, since the trunk has seen the text alone: where the trunk would have chosen otherwise than the text, the
count of that slot ends. On text that the model wrote itself nothing is lost, and the loop's own counts follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.trace import DraftCounts

__all__ = ["Rates", "rates", "walked"]

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rates:
    """Per draft of a step: slots that were tried, those with all drafts before it right, and where it was right too.

    Of a draft that was tried nowhere nothing is known, nor of those after it: None.
    """

    tried: tuple[int, ...]
    right: tuple[int, ...]

    @property
    def conditional(self) -> tuple[float | None, ...]:
        """Share that is right, given that all before it were."""
        return tuple(r / t if t else None for r, t in zip(self.right, self.tried, strict=True))

    @property
    def error(self) -> tuple[float | None, ...]:
        """Standard error of `conditional`, as if slots were independent."""
        pairs = zip(self.conditional, self.tried, strict=True)
        return tuple(None if p is None else sqrt(max(p * (1 - p), 0.25 / n) / n) for p, n in pairs)

    @property
    def per_position(self) -> tuple[float | None, ...]:
        """Expected share of steps that accept at each position."""
        out: list[float | None] = []
        all_right: float | None = 1.0
        for share in self.conditional:
            all_right = None if all_right is None or share is None else all_right * share
            out.append(all_right)
        return tuple(out)

    def _accepted(self, k: int) -> float | None:
        """Expected drafts of k that a step accepts."""
        known = [share for share in self.per_position[:k] if share is not None]
        return sum(known) if len(known) == k else None

    def rate(self, k: int) -> float | None:
        """Expected accepted by drafted, of k a step."""
        accepted = self._accepted(k)
        return None if accepted is None else accepted / k

    def mean_length(self, k: int) -> float | None:
        """Expected tokens of a step with k drafts, its own among them."""
        accepted = self._accepted(k)
        return None if accepted is None else 1 + accepted

    def to_json(self) -> dict[str, Any]:
        ks = range(1, len(self.tried) + 1)
        return {
            **asdict(self),
            "conditional": self.conditional,
            "error": self.error,
            "per_position": self.per_position,
            "rate": [self.rate(k) for k in ks],
            "mean_length": [self.mean_length(k) for k in ks],
        }


def _right(chosen: Tokens, drafts: Sequence[Tokens]) -> list[NDArray[np.bool_]]:
    """Per draft [slots]: is it the trunk's choice? chosen[i] is the trunk's for token i + 1."""
    return [made == chosen[step + 1 : step + 1 + len(made)] for step, made in enumerate(drafts)]


def rates(text: Tokens, start: int, chosen: Tokens, drafts: Sequence[Tokens]) -> tuple[list[int], list[int]]:
    """(tried, right) per draft, of the slots whose first draft is of a token from `start` + 1 on.

    drafts[s][p] is slot p's draft of token p + 2 + s. No slot drafts the token at `start`: the prompt's pass gives it.
    """
    first = max(start - 1, 0)
    alive: NDArray[np.bool_] | None = None
    tried, right = [], []
    for step, hits in enumerate(_right(chosen, drafts)):
        n = len(hits)
        reached = np.ones(n, dtype=np.bool_) if alive is None else alive
        reached[: min(first, n)] = False
        good = reached & hits
        tried.append(int(reached.sum()))
        right.append(int(good.sum()))
        follows = chosen[step + 1 : step + n] == text[step + 2 :]  # the last slot's draft is of a token after the text
        alive = good[: n - 1] & follows
    return tried, right


def walked(text: Tokens, start: int, chosen: Tokens, drafts: Sequence[Tokens], k: int) -> DraftCounts | None:
    """What the loop counts on a text from `start` on that the model wrote itself; None where it did not."""
    if not np.array_equal(chosen[start - 1 : len(text) - 1], text[start:]):
        return None
    hits = _right(chosen, drafts[:k])
    counts = DraftCounts()
    known = start + 1  # tokens of the text: the prompt, and the one that its pass gives
    while known < len(text):
        slot, count = known - 2, min(k, len(text) - known - 1)
        run = next((step for step in range(count) if not hits[step][slot]), count)
        counts.add(count, run)
        known += run + 1
    return counts
