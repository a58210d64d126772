"""Which k would be fastest: tokens a step emits, by what the step costs.

With a_i the chance that draft i is right when those before it were, a step of k drafts emits 1 + a_1 + a_1 a_2 + …
tokens (k + 1 terms: Leviathan et al. 2023, eq. 1, where all a_i are one alpha). It costs c(k) plain tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import linear_regression
from typing import Any, Final

__all__ = ["MOST", "Cost", "Optimum", "expected_length", "fit_cost", "optimum"]

MOST: Final = 16
"""The largest k that is tried: a pass of more rows than that is more than one tile, and c(k) no line."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A step's cost in plain tokens: fixed + per_draft * k."""

    fixed: float
    per_draft: float

    def of(self, k: int) -> float:
        return self.fixed + self.per_draft * k


@dataclass(frozen=True, slots=True)
class Optimum:
    """k, 0 where no drafting is faster than plain; the speedup that is expected of it; whether it was extrapolated."""

    k: int
    speedup: float
    extrapolated: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def expected_length(conditional: Sequence[float], k: int) -> float:
    """Tokens of a step of k drafts. Beyond the given positions the last one's chance goes on."""
    chance, length = 1.0, 1.0
    for position in range(k):
        chance *= conditional[min(position, len(conditional) - 1)]
        length += chance
    return length


def fit_cost(measured: Mapping[int, float]) -> Cost:
    """The least-squares line through the costs of some ks; through (0, 1), plain decoding, when there is one only."""
    points = dict(measured) if len(measured) > 1 else {0: 1.0, **measured}
    slope, intercept = linear_regression(list(points), list(points.values()))
    return Cost(intercept, slope)


def optimum(conditional: Sequence[float], cost: Cost) -> Optimum:
    """The best k of 0 (plain) to 16. `conditional` is `Acceptance.conditional` of the deepest k that was measured."""
    # Noise may tilt the line: a step never costs less than the pass of one token that it contains.
    gains = {k: expected_length(conditional, k) / max(cost.of(k), 1.0) for k in range(1, MOST + 1)}
    best = max(gains, key=lambda k: gains[k])
    if gains[best] <= 1:
        return Optimum(0, 1.0, False)
    return Optimum(best, gains[best], best > len(conditional))
