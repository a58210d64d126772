"""What fails a run, rule by rule, and the table that people paste."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mtptools.decoder.acceptance import Acceptance
from mtptools.report.runtime import runtime_lines
from mtptools.runtimes.generation import Drafts, Generation
from mtptools.runtimes.report import Row, RuntimeReport
from mtptools.threshold import Threshold

TEXT = tuple(range(40))


def generation(drafts: Drafts | None, seconds: float = 2.0, tokens: tuple[int, ...] = TEXT) -> Generation:
    return Generation((1,), tokens, tuple({} for _ in tokens), drafts=drafts, seconds=seconds)


GOOD = Drafts(60, 30, 20, (14, 10, 6))


def report(drafts: Drafts | None = GOOD, prompts: int = 8) -> RuntimeReport:
    ours = Acceptance(3, (160, 160, 160), (112, 80, 48), 160, 400)
    row = Row("prose", generation(None, 4.0), generation(drafts), (60, 30))
    return RuntimeReport("llama.cpp", "b9", "so", "plainly", 3, 40, [row] * prompts, ours=ours)


def test_good() -> None:
    good = report()
    assert good.failures() == []
    assert good.to_json()["ok"]
    assert good.drafts == Drafts(480, 240, 160, (112, 80, 48))
    assert (good.speed("mtp"), good.speed("plain")) == (20.0, 10.0)
    json.loads(json.dumps(good.to_json(), allow_nan=False))


@pytest.mark.parametrize(
    ("drafts", "what"),
    [
        (None, "whether the head is used is not known"),
        (Drafts(0, 0), "drafted nothing: the head is not used"),
        (Drafts(60, 3, 20, (1, 1, 1)), "accepts 5.0% of drafts, at least 10% is wanted: the head is dead there"),
        (Drafts(60, 2), "the head is dead there"),
        (Drafts(60, 18, 20, (12, 4, 2)), "accepts 30.0% of drafts, our decoder 50.0% on the same texts"),
        (Drafts(60, 18), "accepts 30.0% of drafts, our decoder 50.0% on the same texts"),
    ],
)
def test_acceptance_that_fails(drafts: Drafts | None, what: str) -> None:
    (failure,) = report(drafts).failures()
    assert failure.startswith("L5 runtime: ")
    assert what in failure


def test_a_little_less_is_chance() -> None:
    assert report(Drafts(60, 26, 20, (13, 8, 5))).failures() == []
    assert report(Drafts(60, 20, 20, (12, 5, 3)), prompts=1).failures() == []  # 20 steps prove nothing


def test_limits_that_were_asked_for() -> None:
    """Absolute: of first drafts; relative: to ours, and then as it stands."""
    fair = Drafts(60, 26, 20, (13, 8, 5))
    assert replace(report(fair), threshold=Threshold.parse("0.6")).failures() == []
    (failure,) = replace(report(fair), threshold=Threshold.parse("0.7")).failures()
    assert "accepts 65.0% of drafts, at least 70% is wanted" in failure
    (failure,) = replace(report(fair), threshold=Threshold.parse("100%")).failures()
    assert "our decoder" in failure


def test_fewer_tokens_than_asked() -> None:
    short = report()
    short.rows[2] = replace(short.rows[2], mtp=generation(Drafts(60, 30, 20), tokens=TEXT[:12]))
    assert short.failures() == ["L5 runtime: prompt 3 with MTP: 12 tokens, 40 were asked for"]


def test_speed_is_the_median_prompts() -> None:
    """One prompt during which the machine was busy says nothing of the others."""
    slow = report()
    slow.rows[0] = replace(slow.rows[0], mtp=generation(GOOD, 200.0))
    assert slow.speed("mtp") == 20.0


def test_a_plain_run_that_drafts() -> None:
    wrong = report()
    wrong.rows[0] = replace(wrong.rows[0], plain=generation(Drafts(9, 3)))
    assert "the run without MTP drafted too" in wrong.failures()[0]


def test_noise_beyond_rounding() -> None:
    wrong = report()
    wrong.excess = [("a", 3.0), ("the runtime against our decoder", 80.0)]
    (failure,) = wrong.failures()
    assert "80 times as far" in failure


def test_table() -> None:
    lines = runtime_lines(report(prompts=2))
    assert lines[lines.index("") + 1 :][:5] == [
        "| prompt | pred | draft | acc | rate | tok/s | tok/s without | our rate |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: |",
        "| prose | 40 | 60 | 30 | 0.500 | 20.0 | 10.0 | 0.500 |",
        "| prose | 40 | 60 | 30 | 0.500 | 20.0 | 10.0 | 0.500 |",
        "| all | 80 | 120 | 60 | 0.500 | 20.0 | 10.0 | 0.500 |",
    ]
    told = "\n".join(lines)
    assert "2.00 times that without MTP" in told
    assert "70.0%, 50.0%, 30.0% of 40 steps; ours 70.0%, 50.0%, 30.0%" in told
    alone = replace(report(None, 1), how_plain=None, ours=None)
    assert "| all | 40 | not told | not told | not told | 20.0 |" in runtime_lines(alone)
    alone.rows[0] = replace(alone.rows[0], category="a|b\nc")
    assert "| a\\|b c | 40 | not told | not told | not told | 20.0 |" in runtime_lines(alone)
