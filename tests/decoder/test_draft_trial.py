"""Acceptance before and after a head is reduced: against the real loop, and on text like and unlike the corpus."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf, sqrt

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import draft_speed
from mtptools.decoder.acceptance import first_hits, total
from mtptools.decoder.load import load_model, with_vocabulary
from mtptools.decoder.model import Model
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.decoder.trace import Trace
from mtptools.errors import UsageError
from mtptools.ops.roofline import Part, Traffic
from mtptools.report.draft_trial import DraftTrial, Texts, gain_model, generated, try_vocabulary, write_texts
from mtptools.report.draft_trial_text import render, to_json
from mtptools.vocab.maps import Absolute, DraftVocabulary
from tests.conftest import FIXTURES
from tests.decoder import toy

NAME = "glm4moe"
TOKENS = 32
CODE = """def f(x):
    return {k: v for k, v in x.items() if k != "a" and v[0] >= 1024}

class Foo(Bar):
    def __init__(self, n=0):
        self.n = n
"""
TOY = {"one": [[7, 300, 12, 5], [77, 8, 9, 200, 31]], "two": [[3, 40], [250, 1, 1], [99, 98, 97]]}


@cache
def trained() -> Model:
    return load_model(open_checkpoint(FIXTURES / NAME / "hf"), check=False)


@pytest.fixture(scope="module")
def texts() -> Texts:
    """The trunk's own text after passages of English: what is counted, and what is held out."""
    prompts = json.loads((FIXTURES / NAME / "prompts.json").read_text(encoding="utf-8"))["prompts"]
    ids = [token for one in prompts for token in one["ids"]]
    passages = [ids[at : at + 12] for at in range(0, len(ids) - 12, 9)]
    held = passages[1::3]
    return write_texts(trained(), {"made": [one for one in passages if one not in held], "held": held}, TOKENS)


def most_frequent(tokens: list[int], n: int, size: int) -> DraftVocabulary:
    """Ties, and what never occurs, by id."""
    counts = np.bincount(tokens, minlength=size)
    return DraftVocabulary.of(Absolute(np.sort(np.argsort(-counts, kind="stable")[:n])), size)


def half_of_toy() -> DraftVocabulary:
    return DraftVocabulary.of(Absolute(np.arange(0, toy.VOCAB, 2)), toy.VOCAB)


@pytest.fixture
def toy_texts(load: Callable[..., Model]) -> Texts:
    return write_texts(load(), TOY, 30)


def few(texts: Texts) -> Texts:
    return {name: traces[:1] for name, traces in texts.items()}


# --- what a vocabulary costs -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trials(texts: Texts) -> tuple[DraftTrial, DraftTrial]:
    """Half of the vocabulary: by text like that which is held out, and by Python."""
    model, ckpt = trained(), open_checkpoint(FIXTURES / NAME / "hf")
    size = model.hparams.vocab_size
    counted = [token for one in generated(texts["made"]) for token in one], load_tokenizer(ckpt, size).encode(CODE)
    like, unlike = (most_frequent(tokens, size // 2, size) for tokens in counted)
    held = {"held": texts["held"]}
    return try_vocabulary(model, held, like, k=3, runs=0), try_vocabulary(model, held, unlike, k=3, runs=0)


def test_text_like_the_corpus_and_text_unlike_it(trials: tuple[DraftTrial, DraftTrial]) -> None:
    like, unlike = trials
    assert len(like.vocabulary) == len(unlike.vocabulary)
    assert like.domains[0].before == unlike.domains[0].before
    assert like.domains[0].before.acceptance.rate > 0.4
    assert like.domains[0].loss <= 1
    assert like.failed(1) == []
    assert unlike.domains[0].loss > 10
    assert unlike.failed(2) == ["held"]
    assert not unlike.domains[0].unclear(2)
    assert unlike.domains[0].outside > 5 * like.domains[0].outside > 0
    assert "FAIL  held loses" in render(unlike, 2)


def test_what_is_kept_is_drafted_as_before(texts: Texts) -> None:
    """A draft that the whole head gets right stays right, if it can be drafted at all: fewer others are in its way."""
    model = trained()
    kept = DraftVocabulary.of(Absolute(np.arange(0, model.hparams.vocab_size, 2)), model.hparams.vocab_size)
    whole, reduced = model.require_head(), model.require_head().over(kept)
    lost = 0
    for trace in texts["held"]:
        before, after = first_hits(whole, trace), first_hits(reduced, trace)
        there = kept.mask[trace.tokens[1:]]
        assert (after >= (before & there)).all()
        assert not (after & ~there).any()
        lost += int((before & ~after).sum())
    assert lost > 20


def test_the_whole_vocabulary_loses_nothing(toy_texts: Texts, load: Callable[..., Model]) -> None:
    every = DraftVocabulary.of(Absolute(np.arange(toy.VOCAB)), toy.VOCAB)
    trial = try_vocabulary(load(), toy_texts, every, k=3, runs=0)
    for one in (*trial.domains, trial.whole):
        assert one.before == one.after
        assert one.loss == 0
        assert one.worst == (1, 0)
        assert one.outside == 0
    assert trial.failed(0) == []


def test_counts_are_those_of_the_real_loop(toy_texts: Texts, load: Callable[..., Model]) -> None:
    model, kept, k = load(), half_of_toy(), 2
    trial = try_vocabulary(model, toy_texts, kept, k=k, runs=0)
    models = model, with_vocabulary(model, kept)
    loaded = try_vocabulary(model, toy_texts, kept, k=k, runs=0, reduced=models[1].require_head())
    assert loaded.domains == trial.domains
    everything: list[list[float]] = [[], []]
    for one, (name, prompts) in zip(trial.domains, TOY.items(), strict=True):
        assert one.name == name
        outside = tokens = 0
        counts = []
        for arm, drafting in enumerate(models):
            counts.append([decode_speculative(drafting, ids, 30, k).drafts for ids in prompts])
            everything[arm] += [sum(c.accepted) for c in counts[-1]]
        for ids in prompts:
            for token in decode_plain(model, ids, 30).tokens[1:]:
                tokens, outside = tokens + 1, outside + token % 2
        assert [list(one.before.counts), list(one.after.counts)] == counts
        assert (one.tokens, one.outside) == (tokens, outside)
        rates = [sum(sum(c.accepted) for c in arm) / sum(sum(c.drafted) for c in arm) for arm in counts]
        assert one.loss == pytest.approx(100 * (rates[0] - rates[1]))
        firsts = [sum(c.accepted[0] for c in arm) / sum(c.drafted[0] for c in arm) for arm in counts]
        assert one.position_losses[0] == pytest.approx(100 * (firsts[0] - firsts[1]))
        assert one.worst[1] == max(one.position_losses)
        assert one.loss > 5
    assert trial.whole.before.acceptance == total(k, [c for one in trial.domains for c in one.before.counts])
    assert [sum(arm) for arm in everything] == [
        sum(measured.acceptance.accepted) for measured in (trial.whole.before, trial.whole.after)
    ]
    assert trial.whole.outside == sum(one.outside for one in trial.domains)


def test_the_error_is_that_of_leaving_prompts_out(trials: tuple[DraftTrial, DraftTrial]) -> None:
    """Jackknife of the rate's loss itself, over prompts."""
    one = trials[1].domains[0]
    n = len(one.before.counts)
    assert n == 14
    left = []
    for out in range(n):
        arms = [[c for at, c in enumerate(arm.counts) if at != out] for arm in (one.before, one.after)]
        before, after = (total(3, counts).rate for counts in arms)
        left.append(100 * (before - after))
    jackknife = sqrt((n - 1) / n * sum((value - np.mean(left)) ** 2 for value in left))
    assert one.error == pytest.approx(jackknife, rel=0.1)


def test_errors_of_few_prompts(load: Callable[..., Model]) -> None:
    """Of a few steps none is known, and that is said."""
    model = load()
    trial = try_vocabulary(model, write_texts(model, {"a": [[7, 300]]}, 12), half_of_toy(), k=2, runs=0)
    assert trial.domains[0].error == inf
    assert to_json(trial, 2)["domains"]["a"]["loss_error"] is None
    assert to_json(trial, 2)["unclear"] == ["a"]
    assert "± ?" in render(trial)
    more = write_texts(model, {"a": [[7, 300], [3, 4]]}, 60)
    two = try_vocabulary(model, more, half_of_toy(), k=2, runs=0).domains[0]
    assert 0 < two.error < inf
    four = try_vocabulary(model, {"a": [*more["a"], *more["a"]]}, half_of_toy(), k=2, runs=0).domains[0]
    assert four.error < two.error  # texts in common are known to be from four prompts on


# --- texts -----------------------------------------------------------------------------------------------------


def test_generated_text(load: Callable[..., Model]) -> None:
    model, said = load(), list[str]()
    plain = [decode_plain(model, ids, 20).tokens for ids in TOY["one"]]
    stop = plain[0][6]
    found = write_texts(model, {"one": TOY["one"]}, 20, said.append, stop={stop})["one"]
    assert generated(found)[0] == plain[0][:7]
    at = plain[1].index(stop) if stop in plain[1] else 20
    assert generated(found)[1] == plain[1][: at + 1]
    assert said[0] == "one: the trunk's own text: prompt 1 of 2"
    trial = try_vocabulary(model, {"one": found}, half_of_toy(), k=3, runs=0)
    loop = [decode_speculative(model, ids, 20, 3, stop={stop}).drafts for ids in TOY["one"]]
    assert list(trial.domains[0].before.counts) == loop


def test_nothing_to_measure(load: Callable[..., Model]) -> None:
    model = load()
    first = decode_plain(model, [7], 3).tokens[0]
    ended = write_texts(model, {"short": [[7]]}, 9, stop={first})
    with pytest.raises(UsageError, match="the texts of short end before anything is drafted"):
        try_vocabulary(model, ended, half_of_toy(), k=2)
    for texts, k in (({}, 3), ({"a": []}, 3), (write_texts(model, {"a": [[7]]}, 9), 0)):
        with pytest.raises(UsageError, match="a trial needs a prompt"):
            try_vocabulary(model, texts, half_of_toy(), k=k)


# --- gain ------------------------------------------------------------------------------------------------------


def test_modelled_gain() -> None:
    whole = Traffic(Part(1000), (Part(50),), (200,), 250, 0, 0)
    small = replace(whole, outputs=(50,))
    # A step reads the trunk, and k times the head with its output matrix.
    assert gain_model(whole, small, 2.5, 2.4, 3) == pytest.approx((2.4 / (1000 + 3 * 100)) / (2.5 / (1000 + 3 * 250)))
    assert gain_model(whole, whole, 2.5, 2.5, 3) == 1
    assert gain_model(whole, small, 2.5, 1.8, 3) < 1


def test_measured_speed(toy_texts: Texts, load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """The heads take turns, and whether the output is that of plain decoding is looked at."""
    model = load()
    order: list[bool] = []
    honest = decode_speculative

    def watched(one: Model, *args: object) -> Trace:
        order.append(one.require_head().reduced)
        return honest(one, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(draft_speed, "decode_speculative", watched)
    trial = try_vocabulary(model, few(toy_texts), half_of_toy(), k=2, runs=2)
    speed = trial.speed
    assert speed is not None
    assert (speed.prompts, speed.runs, speed.k) == (2, 2, 2)
    assert order == [False, True, *[False, True, True, False] * 2]
    assert min(*speed.tokens_per_second, *speed.draft_seconds) > 0
    assert speed.gain == speed.tokens_per_second[1] / speed.tokens_per_second[0]
    assert speed.equal
    other = load(True)  # another trunk
    wrong = draft_speed.time_heads((other, other), toy_texts["one"], k=2, runs=1)
    assert not wrong.equal
    assert "NO, IT DIFFERS" in render(replace(trial, speed=wrong))


def test_report(toy_texts: Texts, load: Callable[..., Model]) -> None:
    model = load()
    trial = try_vocabulary(model, few(toy_texts), half_of_toy(), k=8, runs=1)
    whole = Traffic(Part(1000), (Part(50),), (200,), 250, 0, 0)
    small = replace(whole, outputs=(100,))
    trial = replace(trial, reads=(whole, small))
    text = render(trial, 2)
    assert max(map(len, text.splitlines())) <= 100
    assert "192 of 384 tokens can be drafted (50%)" in text
    assert "FAIL  one loses" in text
    data = json.loads(json.dumps(to_json(trial, 2)))
    assert data["failed"] == ["one", "two"]
    assert data["draft_vocabulary"] == {"size": 192, "of": 384, "share": 0.5}
    assert list(data["domains"]) == ["one", "two"]
    assert data["all"]["prompts"] == 2
    lengths = [data["domains"]["one"][arm]["mean_length"] for arm in ("before", "after")]
    assert data["domains"]["one"]["modelled_gain"] == pytest.approx(gain_model(whole, small, *lengths, 8))
    assert data["model"]["gain"].startswith("bytes read")
    assert data["speed"]["equal"]
    assert to_json(trial)["failed"] == []
    assert "FAIL" not in render(trial)
