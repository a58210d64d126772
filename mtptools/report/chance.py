"""Student's distribution: what a difference in standard errors may be by chance."""

from __future__ import annotations

from functools import cache
from math import cos, pi, sin, sqrt, tan

__all__ = ["t_quantile"]


@cache
def t_quantile(freedom: int, level: float) -> float:
    """The t of so many degrees of freedom that is exceeded, in either direction, with probability `level`.

    Exact: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4, inverted by bisection.
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (low, angle) if 1 - _within(freedom, angle) < level else (angle, high)
    return sqrt(freedom) * tan(low)


def _within(freedom: int, angle: float) -> float:
    """Probability that |t| < sqrt(freedom) tan(angle)."""
    odd, square = freedom % 2, cos(angle) ** 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for n in range(freedom // 2):
        total += term
        term *= square * (2 * n + 1 + odd) / (2 * n + 2 + odd)
    inner = sin(angle) * total
    return 2 / pi * (angle + inner) if odd else inner
