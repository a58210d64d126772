"""Against numpy's own normal numbers, scipy-free sums, and algebra."""

from __future__ import annotations

from itertools import combinations
from math import exp, factorial

import numpy as np
import pytest

from mtptools.runtimes.noise import Noise, differences, poisson_tail

RNG = np.random.default_rng(5)


def test_differences_are_those_of_pairs() -> None:
    ours, theirs = {1: 3.0, 2: 1.5, 5: -2.0, 9: 0.0}, {1: 2.0, 2: 1.0, 5: -2.5, 8: 7.0}
    pairs = combinations((1, 2, 5), 2)
    wanted = [abs((ours[i] - ours[j]) - (theirs[i] - theirs[j])) for i, j in pairs]
    assert differences(ours, theirs) == pytest.approx(wanted)
    shifted = {token: value - 11.25 for token, value in theirs.items()}  # log-probabilities for logits
    assert differences(ours, shifted) == pytest.approx(wanted)
    assert differences(ours, {1: 2.0}).size == 0


@pytest.mark.parametrize("size", [500, 200_000])
def test_quantile_of_normal_noise(size: int) -> None:
    """Two-sided 99.9 % of a normal distribution is 3.29 deviations; with few samples no less."""
    noise = Noise(np.abs(RNG.normal(0, 0.25, size)), "")
    assert noise.quantile == pytest.approx(3.29 * 0.25, rel=0.15 if size < 1000 else 0.03)
    assert noise.flips(0.25) == pytest.approx(0.3173 / 2, rel=0.1)
    assert noise.flips(0.0) == pytest.approx(0.5, rel=0.01)
    assert noise.flips(5.0) < 1e-12


def test_heavy_tails_count() -> None:
    samples = np.full(20_000, 1e-3)
    samples[:100] = 2.0
    noise = Noise(samples, "")
    assert noise.quantile == 2.0
    assert noise.flips(1.0) == pytest.approx(0.005 / 2)


def test_no_noise_at_all() -> None:
    noise = Noise(np.zeros(50), "")
    assert (noise.quantile, noise.flips(1e-9), noise.flips(0.0)) == (0.0, 0.0, 0.5)
    assert Noise.of([], "") is None


def test_poisson_of_long_texts() -> None:
    """exp(-expected) is zero from 745 on: 1500 where 900 are expected are a defect all the same."""
    assert poisson_tail(1500, 900.0) < 1e-12
    assert poisson_tail(900, 900.0) == pytest.approx(0.5, abs=0.02)
    assert (poisson_tail(0, 0.0), poisson_tail(1, 0.0)) == (1.0, 0.0)


@pytest.mark.parametrize(("n", "expected"), [(0, 2.0), (1, 0.3), (5, 1.2), (12, 3.0)])
def test_poisson(n: int, expected: float) -> None:
    wanted = sum(exp(-expected) * expected**i / factorial(i) for i in range(n, n + 80))
    assert poisson_tail(n, expected) == pytest.approx(wanted, rel=1e-6, abs=1e-15)
