"""How much two ways to compute the same logits part, measured where their tokens agree: what a tie may be by.

No tolerance is fixed anywhere: a bfloat16 logit of 30 moves by 0.25, one in float32 by 0.00001.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import erfc, exp, lgamma, log, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Noise", "differences", "poisson_tail"]

QUANTILE: Final = 0.999
DEVIATIONS: Final = 3.29
"""Standard deviations that hold 99.9 % of a normal distribution."""
ENOUGH: Final = 10_000
"""Samples from which on the quantile itself is trusted; with fewer, it is the largest or the normal's."""


def differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> NDArray[np.float64]:
    """|(a_i - a_j) - (b_i - b_j)| of all pairs of tokens that both tell of: what no normalization changes."""
    shared = sorted(ours.keys() & theirs.keys())
    gaps = np.array([ours[token] - theirs[token] for token in shared], dtype=np.float64)
    first, second = np.triu_indices(len(shared), 1)
    return np.asarray(np.abs(gaps[first] - gaps[second]), dtype=np.float64)


@dataclass(frozen=True)
class Noise:
    """samples: absolute differences of differences of logits;  source: what was compared
    measured: of the runtime itself; else of our decoder with disturbed layers, which tells the size alone
    """

    samples: NDArray[np.float64]
    source: str
    measured: bool = True

    @staticmethod
    def of(parts: Iterable[NDArray[np.float64]], source: str, *, measured: bool = True) -> Noise | None:
        """None of no samples."""
        found = list(parts)
        samples = np.concatenate(found) if found else np.zeros(0)
        return Noise(samples, source, measured) if samples.size else None

    @cached_property
    def rms(self) -> float:
        return float(np.sqrt(np.mean(np.square(self.samples))))

    @cached_property
    def quantile(self) -> float:
        """The 99.9 % one: a margin below it may be turned over by noise."""
        if self.samples.size >= ENOUGH:
            return float(np.quantile(self.samples, QUANTILE))
        return max(float(self.samples.max()), DEVIATIONS * self.rms)

    @cached_property
    def ordered(self) -> NDArray[np.float64]:
        """Sorted: `flips` is asked for every token of a text."""
        return np.sort(self.samples)

    def flips(self, margin: float) -> float:
        """Probability that noise turns a margin over: the difference must be large, and have the sign."""
        seen = 1 - int(np.searchsorted(self.ordered, margin, "right")) / self.samples.size
        normal = erfc(margin / (self.rms * sqrt(2))) if self.rms else float(margin <= 0)
        return max(seen, normal) / 2


def poisson_tail(n: int, expected: float) -> float:
    """Probability of n or more where `expected` are expected."""
    if expected <= 0:
        return float(n == 0)
    below = sum(exp(i * log(expected) - expected - lgamma(i + 1)) for i in range(n))
    return max(0.0, 1.0 - below)
