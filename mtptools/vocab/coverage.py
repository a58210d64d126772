"""What a draft vocabulary covers: the share of a text's tokens that a head reduced to it can draft at all.

Coverage bounds acceptance and is not acceptance: a token that cannot be drafted is never accepted, one that can be may
still be drafted wrong. Of k tokens drafted in a row all can be drafted in at least 1 - k (1 - c) of all places and in
at most c of them, c the coverage: rare tokens come together, so it is seldom as little as c to the power of k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import UsageError
from mtptools.vocab.counting import Counted
from mtptools.vocab.maps import Absolute, DraftVocabulary

__all__ = ["SIZES", "Coverage", "Covered", "K", "coverage", "curve", "share", "unseen_counts", "weighted"]

K: Final = 1024

SIZES: Final = (16 * K, 32 * K, 48 * K, 64 * K, 96 * K)
"""Sizes that people cut to."""


@dataclass(frozen=True)
class Covered:
    """One domain under a draft vocabulary.

    weight  of the domain; 0: looked at and counted nowhere
    held    0..1, share of the held-out occurrences that can be drafted: what to go by
    train   0..1, the same of the text that the vocabulary was chosen by, as a rule a little better
    tokens  held-out occurrences in all
    """

    domain: str
    weight: float
    held: float
    train: float
    tokens: int


@dataclass(frozen=True)
class Coverage:
    """size  of the draft vocabulary
    of    size of the target's vocabulary
    """

    size: int
    of: int
    domains: tuple[Covered, ...]

    @property
    def overall(self) -> float:
        """0..1, held out, of text that mixes the domains token for token by their weights."""
        return sum(one.weight * one.held for one in self.domains) / sum(one.weight for one in self.domains)

    @property
    def worst(self) -> Covered:
        """Of the domains that count."""
        return min((one for one in self.domains if one.weight), key=lambda one: one.held)


def coverage(draft: DraftVocabulary, counted: Sequence[Counted], weights: Mapping[str, float]) -> Coverage:
    """Of each domain. weights as in `weighted`. Raises UsageError."""
    by_domain = weighted(counted, weights)
    rows = (
        Covered(
            domain=one.domain,
            weight=by_domain[one.domain],
            held=share(draft, unseen_counts(one, by_domain[one.domain])),
            train=share(draft, one.train),
            tokens=int(unseen_counts(one, by_domain[one.domain]).sum()),
        )
        for one in counted
    )
    return Coverage(len(draft), draft.size, tuple(rows))


def unseen_counts(one: Counted, weight: float) -> NDArray[np.int64]:
    """[vocab] occurrences that had no say in the choice: of a domain of weight 0, all."""
    return one.held if weight else one.train + one.held


def share(draft: DraftVocabulary, counts: NDArray[np.int64]) -> float:
    """0..1, of the occurrences counts [vocab]; 1 of none at all."""
    total = int(counts.sum())
    return int(counts[draft.ids].sum()) / total if total else 1.0


def curve(ranked: Absolute, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """[len(ranked) + 1]: what the first 0, 1, 2, … of the ids cover of the occurrences counts [vocab]."""
    covered = np.concatenate(([0], np.cumsum(counts[ranked])))
    return np.asarray(covered / max(int(counts.sum()), 1), dtype=np.float64)


def weighted(counted: Sequence[Counted], weights: Mapping[str, float]) -> dict[str, float]:
    """Weight of every domain, 1 where none is given.

    Raises UsageError: a domain that there is not, a weight that is no number from 0 up, nothing but zeros.
    """
    domains = [one.domain for one in counted]
    unknown = [name for name in weights if name not in domains]
    if unknown:
        raise UsageError(
            f"a weight for {', '.join(unknown)}, which no corpus is called",
            where="--weight",
            hint=f"the domains are {', '.join(domains)}; --corpus NAME=PATH gives one a name",
        )
    bad = [f"{name}={weight:g}" for name, weight in weights.items() if not isfinite(weight) or weight < 0]
    if bad:
        raise UsageError(f"{', '.join(bad)}: a weight is a number from 0 up", where="--weight", hint="--weight NAME=2")
    out = {name: float(weights.get(name, 1.0)) for name in domains}
    if not any(out.values()):
        raise UsageError(
            "every domain has weight 0, so nothing says which tokens to keep",
            where="--weight",
            hint="0 is for text that is only looked at; leave --weight out for the others",
        )
    return out
