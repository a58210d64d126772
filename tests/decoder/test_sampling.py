"""The chain and its noise, against llama.cpp's own expectations, the definition of DRY, and frequencies."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from mtptools.decoder.penalties import Dry, Penalties, breaker_ids
from mtptools.decoder.sampling import (
    ACCEPT,
    DRAFT,
    DRAFT_CHOICES,
    GREEDY,
    SAMPLE,
    Sampling,
    choose,
    numbers,
    top_two,
)
from mtptools.errors import UsageError


def logits(*probabilities: float) -> NDArray[np.float32]:
    return np.log(np.array(probabilities)).astype(np.float32)


def test_greedy_takes_the_first_of_equals() -> None:
    row = np.array([1, 3, 2, 3], np.float32)
    assert choose(row, []) == 1
    assert top_two(row) == (1, 0.0)
    assert row.tolist() == [1, 3, 2, 3]


def test_noise_belongs_to_seed_and_position() -> None:
    row = np.zeros(1000, np.float32)
    picks = {(s, p): choose(row, range(p), Sampling(1.0, seed=s)) for s in range(3) for p in range(5)}
    assert len(set(picks.values())) > 10
    assert picks == {(s, p): choose(row, range(p), Sampling(1.0, seed=s)) for s in range(3) for p in range(5)}
    assert choose(row, [5, 6, 7], Sampling(1.0)) == choose(row, [1, 2, 3], Sampling(1.0))


def test_purposes_are_independent() -> None:
    """Correlations and means are within 5 standard errors."""
    found = np.corrcoef([numbers(3, 7, purpose, 4000) for purpose in (SAMPLE, DRAFT, ACCEPT)])
    assert np.abs(found - np.eye(3)).max() < 5 / np.sqrt(4000)
    firsts = np.array([[numbers(3, p, purpose, 1)[0] for p in range(2000)] for purpose in (ACCEPT, SAMPLE)])
    assert np.abs(firsts.mean(axis=1) - 0.5).max() < 5 / np.sqrt(12 * 2000)
    assert np.abs(np.corrcoef(firsts) - np.eye(2)).max() < 5 / np.sqrt(2000)


def test_frequencies_follow_the_softmax() -> None:
    """Chi-square over 20000 draws with 7 degrees of freedom: 60 is a chance of about 2e-10."""
    row = logits(0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02)
    n = 20000
    seen = np.bincount([choose(row, range(p), Sampling(1.0, seed=1)) for p in range(n)], minlength=8)
    expected = np.exp(row.astype(np.float64)) * n
    assert ((seen - expected) ** 2 / expected).sum() < 60
    flat = np.bincount([choose(row, range(p), Sampling(2.0, seed=1)) for p in range(n)], minlength=8)
    assert ((flat - expected) ** 2 / expected).sum() > 60  # the test can fail: another temperature does


# What llama.cpp's tests/test-sampling.cpp expects of its samplers (temperature 1, the chain of one).
FOUR = (0.1, 0.2, 0.3, 0.4)
FIVE = (0.2,) * 5
FILTERS = [
    ({"top_k": 1}, (0, 0, 0, 1)),
    ({"top_k": 3}, (0, 0.22222, 0.33333, 0.44444)),
    ({"top_k": 4}, FOUR),
    ({"top_k": 0}, FOUR),
    ({"top_p": 0.7}, (0, 0, 0.428571, 0.571429)),
    ({"top_p": 0.8}, (0, 0.22222, 0.33333, 0.44444)),
    ({"top_p": 1.0}, FOUR),
    ({"min_p": 0.0}, FOUR),
    ({"min_p": 0.24}, FOUR),
    ({"min_p": 0.26}, (0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9)),
    ({"min_p": 0.49}, (0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9)),
    ({"min_p": 0.51}, (0, 0, 0.3 / 0.7, 0.4 / 0.7)),
    ({"min_p": 0.74}, (0, 0, 0.3 / 0.7, 0.4 / 0.7)),
    ({"min_p": 0.76}, (0, 0, 0, 1)),
    ({"min_p": 1.0}, (0, 0, 0, 1)),
]
PENALTIES = [
    ([0], (50, 0, 0), (0, 0.25, 0.25, 0.25, 0.25)),
    ([0, 1, 2], (50, 0, 0), (0, 0, 0, 0.5, 0.5)),
    ([0, 1, 2, 0, 0], (50, 0, 0), (0, 0, 0, 0.5, 0.5)),
    ([0], (1, 5, 5), (0.000011, 0.249997, 0.249997, 0.249997, 0.249997)),
    ([0, 1, 2], (1, 5, 5), (0.000023, 0.000023, 0.000023, 0.499966, 0.499966)),
    ([0, 1, 2, 0, 0], (1, 5, 5), (0, 0.000023, 0.000023, 0.499977, 0.499977)),
]
DRY = [
    ([0, 1], Dry(1.0, 1.1, 2, 4), (0.25,) * 4),
    ([0, 1, 2, 0, 1], Dry(1.0, 1.1, 2, 5), (0.296923, 0.296923, 0.109232, 0.296923)),
    ([0, 1, 3, 4, 0, 1], Dry(1.0, 1.1, 2, 6, frozenset({3})), FIVE),
    ([0, 1, 2, 0, 1], Dry(2.0, 1.1, 2, 5), (0.241818, 0.241818, 0.032727, 0.241818, 0.241818)),
    ([0, 1, 2, 3, 4, 0, 1], Dry(1.0, 1.1, 4, 7), FIVE),
]


@pytest.mark.parametrize(("setting", "expected"), FILTERS)
def test_filters(setting: dict[str, float], expected: Sequence[float]) -> None:
    found = Sampling(1.0, **setting).probabilities(logits(*FOUR), [])
    assert found == pytest.approx(expected, abs=1e-5)
    hot = Sampling(2.0, **setting).probabilities(logits(*FOUR), [])
    assert ((hot > 0) == (found > 0)).all()  # temperature comes last


@pytest.mark.parametrize(("history", "setting", "expected"), PENALTIES)
def test_penalties(history: list[int], setting: tuple[float, ...], expected: Sequence[float]) -> None:
    """llama.cpp's order of the three is repetition, frequency, presence."""
    repetition, frequency, presence = setting
    sampling = Sampling(1.0, penalties=Penalties(repetition, presence, frequency))
    assert sampling.probabilities(logits(*FIVE), history) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("history", "dry", "expected"), DRY)
def test_dry(history: list[int], dry: Dry, expected: Sequence[float]) -> None:
    row = logits(*(1 / len(expected),) * len(expected))
    assert Sampling(1.0, dry=dry).probabilities(row, history) == pytest.approx(expected, abs=1e-5)


def test_repetition_by_the_sign_of_a_score() -> None:
    scores = np.array([4.0, -4.0, 2.0])
    Penalties(repetition=2).apply(scores, [0, 1])
    assert scores.tolist() == [2, -8, 2]


def test_penalties_look_back_so_far() -> None:
    scores = np.zeros(4)
    Penalties(presence=1, frequency=0.5, last_n=3).apply(scores, [3, 0, 1, 1])
    assert scores.tolist() == [-1.5, -2, 0, 0]


def dry_by_definition(dry: Dry, text: list[int], token: int) -> float:
    """The penalty of one token, from the words of its definition; quadratic and worse."""
    text = text[-dry.last_n :] if dry.last_n else text
    longest = 0
    for at in (i for i, t in enumerate(text) if t == token):
        n = 0
        while n < at and text[at - 1 - n] == text[-1 - n] and text[-1 - n] not in dry.breakers:
            n += 1
        longest = max(longest, n)
    if longest < dry.allowed_length or token in dry.breakers:
        return 0.0
    return dry.multiplier * dry.base ** (longest - dry.allowed_length)


def test_dry_is_its_definition() -> None:
    draw = random.Random(5)
    penalised = 0
    for _ in range(400):
        text = draw.choices(range(draw.choice([2, 3, 5])), k=draw.randrange(0, 40))
        breakers = frozenset(draw.sample(range(5), draw.choice([0, 0, 1])))
        dry = Dry(draw.choice([0.5, 2]), draw.choice([1.0, 1.3]), draw.randrange(1, 4), draw.choice([0, 7]), breakers)
        scores = np.zeros(5)
        dry.apply(scores, text)
        wanted = [-dry_by_definition(dry, text, token) for token in range(5)]
        assert scores == pytest.approx(wanted, rel=1e-12), (text, dry)
        penalised += any(wanted)
    assert penalised > 100


def test_dry_is_linear_and_finite() -> None:
    scores = np.zeros(2)
    Dry(1.0).apply(scores, [1] * 100_000)  # a quadratic search would take hours
    assert np.isfinite(scores).all()
    assert scores[1] < -1e37
    assert Sampling(0.7, dry=Dry(1.0)).probabilities(logits(0.1, 0.9), [1] * 500).tolist() == [1, 0]


def test_the_order_of_the_chain() -> None:
    """Penalties act before top-k, top-k before top-p, top-p before min-p, all before temperature."""
    row = logits(0.4, 0.3, 0.2, 0.1)
    presence = Penalties(presence=10)
    assert Sampling(1.0, top_k=1, penalties=presence).probabilities(row, [0]).tolist() == [0, 1, 0, 0]
    # of the two that top-k leaves the first has 0.57 of the mass: top-p takes it alone only after top-k
    assert Sampling(1.0, top_k=2, top_p=0.55).probabilities(row, []).tolist() == [1, 0, 0, 0]
    assert (Sampling(1.0, top_p=0.55).probabilities(row, []) > 0).sum() == 2
    # 0.75 of the most probable is 0.3: min-p keeps two; at temperature 9 before it all four would stay
    assert (Sampling(9.0, min_p=0.74).probabilities(row, []) > 0).sum() == 2
    assert (Sampling(9.0, top_p=0.65).probabilities(row, []) > 0).sum() == 2


def test_ties_of_top_k_go_to_small_ids() -> None:
    assert Sampling(1.0, top_k=2).probabilities(np.zeros(5, np.float32), []).tolist() == [0.5, 0.5, 0, 0, 0]


def test_tiny_and_huge_temperatures() -> None:
    row = np.array([-1e30, 50, 49, -np.inf], np.float32)
    assert Sampling(1e-300).probabilities(row, []).tolist() == [0, 1, 0, 0]
    assert Sampling(1e300).probabilities(row, [])[:3] == pytest.approx([1 / 3] * 3)


def test_ways_to_choose_drafts() -> None:
    row = logits(0.5, 0.3, 0.2)
    sampling = Sampling(1.0, penalties=Penalties(presence=5), seed=3)
    found = {choice: choose(row, [0], sampling.for_drafts(choice)) for choice in DRAFT_CHOICES}
    assert found["argmax"] == 0
    assert found["chain"] == 1  # the penalty moved the peak
    assert found["sampler"] == choose(row, [0], sampling)
    assert len({choose(row, [0] * n, sampling.for_drafts("sampler")) for n in range(1, 40)}) > 1
    assert {choose(row, [0] * n, sampling.for_drafts("chain")) for n in range(1, 40)} == {1}


def test_in_words() -> None:
    assert str(GREEDY) == "greedy"
    sampling = Sampling(0.7, 40, 0.9, 0.05, 3, Penalties(1.1, 0.5, 0.25), Dry(0.8, breakers=frozenset({4, 2})))
    assert str(sampling) == (
        "temperature 0.7, top-k 40, top-p 0.9, min-p 0.05, repetition penalty 1.1, presence penalty 0.5, "
        "frequency penalty 0.25, DRY 0.8, seed 3"
    )
    assert sampling.to_json()["dry"]["breakers"] == [2, 4]
    assert GREEDY.is_plain
    assert not Sampling(dry=Dry(1)).is_plain


def test_breakers() -> None:
    assert breaker_ids(["a", "b:", '"', "c\n\n", "*", ""]) == {1, 2, 3, 4}


NAN = float("nan")
WRONG = [
    *({"temperature": v} for v in (-1, NAN, float("inf"))),
    *({"top_k": v} for v in (-1,)),
    *({"top_p": v} for v in (0, 1.1, NAN)),
    *({"min_p": v} for v in (-0.1, 1.1)),
    *({"seed": v} for v in (-1, 2**64)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_impossible_settings(wrong: dict[str, float]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(UsageError, match=f"{name.replace('_', '-')} {value} is not possible") as raised:
        Sampling(**wrong)
    assert (raised.value.hint or "").startswith(f"--{name.replace('_', '-')} ")


@pytest.mark.parametrize("wrong", [{"repetition": 0}, {"repetition": NAN}, {"presence": NAN}, {"last_n": -1}], ids=str)
def test_impossible_penalties(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="is not possible"):
        Penalties(**wrong)


@pytest.mark.parametrize("wrong", [{"multiplier": -1}, {"base": 0.5}, {"allowed_length": 0}, {"last_n": -1}], ids=str)
def test_impossible_dry(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"dry-.* is not possible"):
        Dry(**wrong)
