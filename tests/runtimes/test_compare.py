"""Divergences made by hand: each kind gets its grade, and a defect that always falls on ties is found by its number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from mtptools.runtimes.asking import Answer
from mtptools.runtimes.compare import MTP, PLAIN, Compared, against_ours, mtp_against_plain, our_noise, own_noise
from mtptools.runtimes.generation import Generation
from mtptools.runtimes.grades import DEFECT, EXCESS, NEAR_TIE, ROUTER_TIE, UNKNOWN, Comparison, grade
from mtptools.runtimes.noise import Noise
from mtptools.runtimes.reading import Reading
from tests.runtimes.fake_server import decode

RNG = np.random.default_rng(7)
NOISE = Noise(np.abs(RNG.normal(0, 0.1, 2000)), "made up")


def made(tokens: list[int], top: list[Mapping[int, float]] | None = None) -> Generation:
    return Generation((1, 2), tuple(tokens), tuple(top or [{} for _ in tokens]))


def reading(tokens: list[int], margins: list[float], rerouted: list[bool] | None = None) -> Reading:
    """Our best ones are `tokens`, each `margin` above token 90."""
    logits = [{token: margin, 90: 0.0, 91: -9.0} for token, margin in zip(tokens, margins, strict=True)]
    return Reading(list(tokens), [90] * len(tokens), logits, list(logits), rerouted or [])


@pytest.mark.parametrize(
    ("margin", "noise", "rerouted", "wanted"),
    [
        (0.2, NOISE, False, NEAR_TIE),
        (0.2, NOISE, True, NEAR_TIE),
        (2.0, NOISE, True, ROUTER_TIE),
        (2.0, NOISE, False, DEFECT),
        (None, NOISE, False, UNKNOWN),
        (0.2, None, False, UNKNOWN),
        (2.0, Noise(NOISE.samples, "", measured=False), False, UNKNOWN),
        (1.1 * EXCESS * NOISE.quantile, Noise(NOISE.samples, "", measured=False), False, DEFECT),
    ],
)
def test_grades(margin: float | None, noise: Noise | None, rerouted: bool, wanted: str) -> None:
    assert grade(margin, noise, rerouted=rerouted) == wanted


def test_mtp_against_plain_stops_at_the_first_divergence() -> None:
    top = [{token: -0.1, 90: -3.1} for token in (3, 4, 5, 6)]
    plain, mtp = made([3, 4, 5, 6], top), made([3, 90, 5, 90])
    found = mtp_against_plain([Compared(Answer(mtp, plain, {}))], NOISE, decode)
    assert found.positions == 2
    (one,) = found.divergences
    assert (one.at, one.prompt, one.tokens, one.grade) == (1, 1, (4, 90), DEFECT)
    assert one.margin == pytest.approx(3.0)
    assert (one.before, one.expected, one.found) == ("<1><2><3>", "<4>", "<90>")
    assert "differs from without MTP: prompt 1, token 1: '<90>' for '<4>'" in found.failures()[0]


def test_a_token_far_down_is_at_least_as_far_as_the_last_one_told() -> None:
    plain = made([3], [{3: 0.0, 4: -1.0, 5: -7.0}])
    (one,) = mtp_against_plain([Compared(Answer(made([60]), plain, {}))], NOISE, decode).divergences
    assert (one.margin, one.grade) == (7.0, DEFECT)


def test_without_log_probabilities_our_decoder_knows_the_margin() -> None:
    answer = Answer(made([3, 90]), made([3, 4]), {})
    found = mtp_against_plain([Compared(answer, reading([3, 4], [5.0, 0.05]))], NOISE, decode)
    assert [one.grade for one in found.divergences] == [NEAR_TIE]
    nothing = mtp_against_plain([Compared(answer)], NOISE, decode)
    assert [one.grade for one in nothing.divergences] == [UNKNOWN]
    assert nothing.failures()  # not known is not a pass


def test_every_position_is_compared_with_ours() -> None:
    tokens = [3, 90, 5, 90, 90]
    ours = reading([3, 4, 5, 6, 7], [9.0, 0.1, 9.0, 4.0, 4.0], [False, False, False, False, True])
    found = against_ours([Compared(Answer(made(tokens), made(tokens), {}), ours)], PLAIN, NOISE, decode)
    assert [(one.at, one.grade) for one in found.divergences] == [(1, NEAR_TIE), (3, DEFECT), (4, ROUTER_TIE)]
    assert against_ours([Compared(Answer(made(tokens), None, {}))], MTP, NOISE, decode).positions == 0


def test_too_many_ties_are_a_defect() -> None:
    """Every tie is one by itself: margins of two deviations turn over in one of 44. All of them do here."""
    few, all_ = (_ties(n) for n in (1, 40))
    assert {one.grade for one in all_.divergences} == {NEAR_TIE}
    assert all_.expected_flips == pytest.approx(40 * 0.0455 / 2, rel=0.2)
    assert all_.systematic
    assert "40 times in 40 tokens, noise explains 0.9" in all_.failures()[0]
    assert not few.systematic
    assert not few.failures()


def _ties(flipped: int) -> Comparison:
    tokens = [90] * flipped + [3] * (40 - flipped)
    ours = reading([3] * 40, [0.2] * 40)
    return against_ours([Compared(Answer(made(tokens), made(tokens), {}), ours)], PLAIN, NOISE, decode)


def test_noise_is_that_of_agreeing_positions() -> None:
    top = [{3: -1.0, 90: -2.0}, {90: -1.0, 4: -30.0}]
    ours = reading([3, 4], [1.25, 30.0])
    answer = Answer(made([3, 90], top), made([3, 90], top), {1: {90: -1.5, 4: -30.0}})
    noise = our_noise([Compared(answer, ours)])
    assert noise is not None
    assert noise.samples == pytest.approx([0.25])
    own = own_noise([Compared(answer, ours)])  # read again, and with MTP, which told the same
    assert own is not None
    assert sorted(own.samples) == pytest.approx([0.0, 0.0, 0.5])
