"""Counts and times of a bench, on a toy model; the arithmetic of gains on numbers that can be done by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from mtptools.decoder import bench as module
from mtptools.decoder.acceptance import simulate
from mtptools.decoder.bench import Bench, PromptTimes, bench_model
from mtptools.decoder.model import Model
from mtptools.decoder.speculate import decode_plain
from mtptools.decoder.trace import DraftCounts
from mtptools.errors import MissingHeadError, UsageError

PROMPTS = [[5, 9, 11], [7, 3], [40, 41, 42, 43]]
KINDS = ["a", "b", "a"]


@pytest.fixture(scope="module")
def model(load: Callable[..., Model]) -> Model:
    return load()


@pytest.fixture(scope="module")
def measured(model: Model) -> Bench:
    return bench_model(model, PROMPTS, KINDS, (3, 1), 12, runs=2)


def test_counts_are_those_of_the_head_alone(model: Model, measured: Bench) -> None:
    """`simulate` runs no verify pass, and tells the same counts."""
    assert measured.ks == (1, 3)
    for ids, one in zip(PROMPTS, measured.prompts, strict=True):
        plain = decode_plain(model, ids, 12, keep_states=True)
        assert one.tokens == plain.tokens
        for k in measured.ks:
            assert one.drafts[k] == simulate(model.require_head(), plain, k)


def test_everything_is_compared_and_timed(measured: Bench) -> None:
    arms, runs = 3, 2
    assert len(measured.parity) == len(PROMPTS) * (arms * runs - 1)
    assert measured.parity_ok
    assert all(result.compared == 12 for result in measured.parity)
    for one in measured.prompts:
        assert {k: len(seconds) for k, seconds in one.seconds.items()} == {0: 2, 1: 2, 3: 2}
        assert min(min(seconds) for seconds in (*one.seconds.values(), *one.reading.values())) > 0


def test_categories_add_up(measured: Bench) -> None:
    assert measured.categories == ["a", "b"]
    for k in measured.ks:
        parts = [measured.gain(k, category).acceptance for category in measured.categories]
        whole = measured.gain(k).acceptance
        assert whole.emitted == sum(part.emitted for part in parts) == len(PROMPTS) * 11
        assert whole.accepted == tuple(map(sum, zip(*(part.accepted for part in parts), strict=True)))


def test_json_keeps_every_run(measured: Bench) -> None:
    data = measured.to_json()
    assert data["fingerprint"]["threads"] >= 1
    for one, record in zip(measured.prompts, data["per_prompt"], strict=True):
        assert record["emitted"] == one.tokens
        assert [arm["seconds"] for arm in record["arms"]] == [one.seconds[k] for k in (0, 1, 3)]
        assert record["arms"][2]["drafted"] == tuple(one.drafts[3].drafted)
    assert set(data["categories"]) == {"a", "b"}


def test_arms_rotate_after_a_warm_up(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[int, int]] = []
    decode = module._decode

    def noted(model: Model, ids: Any, n: int, k: int) -> Any:
        order.append((k, n))
        return decode(model, ids, n, k)

    monkeypatch.setattr(module, "_decode", noted)
    bench_model(model, PROMPTS[:1], KINDS[:1], (1, 2), 24, runs=3)
    assert [k for k, _ in order[:3]] == [0, 1, 2]
    assert all(n < 24 for _, n in order[:3]), "the warm-up is short"
    rounds = [[k for k, _ in order[at : at + 3]] for at in (3, 6, 9)]
    assert rounds == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


def test_another_output_is_found(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit of one logits row, in one run of one arm; the tokens agree."""
    decode, calls = module._decode, [0]

    def faulty(model: Model, ids: Any, n: int, k: int) -> Any:
        trace = decode(model, ids, n, k)
        calls[0] += k == 2
        if calls[0] == 3 and k == 2:  # the warm-up is the first
            trace.digests[4] = "0" * 32
        return trace

    monkeypatch.setattr(module, "_decode", faulty)
    found = bench_model(model, PROMPTS[:1], KINDS[:1], (1, 2), 8, runs=2)
    assert not found.parity_ok
    assert [r.arm for r in found.parity if not r.equal] == ["prompt 1, k=2, run 2"]
    assert [r.first_difference for r in found.parity if not r.equal] == [4]


def test_refusals_come_first(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_decode", lambda *_: pytest.fail("nothing is to be decoded"))
    with pytest.raises(UsageError, match=r"prompt 2 \(b\) is 2040 tokens long.*context of 2048"):
        bench_model(model, [[1], [2] * 2040], ["a", "b"], (1,), 16)
    for prompts, ks, n in (([], (1,), 8), ([[1]], (), 8), ([[1]], (0,), 8), ([[1]], (1,), 1)):
        with pytest.raises(UsageError):
            bench_model(model, prompts, ["a"] * len(prompts), ks, n)
    with pytest.raises(MissingHeadError):
        bench_model(replace(model, head=None), PROMPTS, KINDS, (1,), 8)


def counts(*steps: tuple[int, int]) -> DraftCounts:
    out = DraftCounts()
    for drafted, accepted in steps:
        out.add(drafted, accepted)
    return out


def test_gain_by_hand() -> None:
    """Two prompts of 8 tokens after the first: plain medians 4 and 2 s, with k=2 medians 2 and 1.2 s."""
    one = PromptTimes(
        [1], "", list(range(9)), {0: [4.0, 5.0, 3.0], 2: [2.0, 9.0, 1.0]}, {}, {2: counts((2, 2), (2, 2), (1, 1))}
    )
    two = PromptTimes(
        [1], "", list(range(9)), {0: [2.0, 2.0, 2.0], 2: [1.2, 1.0, 1.4]}, {}, {2: counts((2, 1), (2, 2), (2, 2))}
    )
    bench = Bench((2,), 9, 3, [one, two])
    gain = bench.gain(2)
    assert bench.plain_tokens_per_second() == pytest.approx(16 / 6)
    assert gain.tokens_per_second == pytest.approx(16 / 3.2)
    assert gain.speedup == pytest.approx(6 / 3.2)
    assert (gain.least, gain.most) == pytest.approx((7 / 10, 5 / 2.4))
    assert gain.acceptance.mean_length == pytest.approx(16 / 6)
    # 6 steps took 3.2 s, 16 plain tokens 6 s.
    assert gain.cost == pytest.approx((3.2 / 6) / (6 / 16))
    assert bench.categories == []
