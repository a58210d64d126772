from __future__ import annotations

import numpy as np
import pytest

from mtptools.decoder.sampling import Sampling, choose, top_two
from mtptools.errors import UsageError


def test_greedy_takes_the_first_of_equals() -> None:
    logits = np.array([1, 3, 2, 3], np.float32)
    assert choose(logits, 0) == 1
    assert top_two(logits) == (1, 0.0)
    assert logits.tolist() == [1, 3, 2, 3]


def test_noise_belongs_to_seed_and_position() -> None:
    logits = np.zeros(1000, np.float32)
    picks = {(s, p): choose(logits, p, Sampling(1.0, seed=s)) for s in range(3) for p in range(5)}
    assert len(set(picks.values())) > 10
    assert picks == {(s, p): choose(logits, p, Sampling(1.0, seed=s)) for s in range(3) for p in range(5)}


def test_frequencies_follow_the_softmax() -> None:
    """Chi-square over 20000 draws with 7 degrees of freedom: 60 is a chance of about 2e-10."""
    logits = np.log(np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02])).astype(np.float32)
    n = 20000
    seen = np.bincount([choose(logits, p, Sampling(1.0, seed=1)) for p in range(n)], minlength=8)
    expected = np.exp(logits.astype(np.float64)) * n
    assert ((seen - expected) ** 2 / expected).sum() < 60
    flat = np.bincount([choose(logits, p, Sampling(2.0, seed=1)) for p in range(n)], minlength=8)
    assert ((flat - expected) ** 2 / expected).sum() > 60  # the test can fail: another temperature does


def test_filters() -> None:
    logits = np.log(np.array([0.05, 0.5, 0.3, 0.15])).astype(np.float32)

    def support(sampling: Sampling) -> set[int]:
        return {choose(logits, p, sampling) for p in range(500)}

    assert support(Sampling(1.0, top_k=2)) == {1, 2}
    assert support(Sampling(1.0, top_p=0.5)) == {1}
    assert support(Sampling(1.0, top_p=0.6)) == {1, 2}
    assert support(Sampling(1.0, top_k=3, top_p=0.99)) == {1, 2, 3}
    assert support(Sampling(1.0)) == {0, 1, 2, 3}


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"seed": -1}])
def test_impossible_settings(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Sampling(**wrong)
