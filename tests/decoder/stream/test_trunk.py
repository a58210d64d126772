"""A pass gives the states, margins and choices of the ordinary decoder, on every fixture."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.decoder.best import best
from mtptools.decoder.stream import trunk_pass
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.errors import CorruptError
from tests.decoder import toy
from tests.decoder.stream.given import TRAINED, ordinary, own_texts, read, short, streamed, through

GGUF = tuple(f"{name}/gguf/{file}.gguf" for name in TRAINED[:2] for file in ("model-BF16", "trunk-Q8_0", "trunk-Q4_K"))
PLACES = (*(f"{name}/hf" for name in TRAINED), *GGUF)

NEAR = 1e-3
"""Logits: a margin below it may fall either way where sums are taken in another order."""


def both(place: str, dtype: str = "float32", **options: object) -> None:
    """States of a pass and of the ordinary decoder, bit for bit, and what follows from them."""
    passages, model = short(place.split("/")[0]), ordinary(place, dtype)
    one = streamed(place, passages, dtype=dtype, **options)
    ended = through(one)
    with torch.inference_mode():
        found = best(one.arithmetic, ended.post, one.trunk.output)
    for passage, first, stop in passages.bounds():
        states = read(model, passage)
        with torch.inference_mode():
            top = model.trunk.logits(states).topk(2)
        assert torch.equal(ended.pre[first:stop], states.pre)
        assert torch.equal(ended.post[first:stop], states.post)
        assert torch.equal(found.top[first:stop], top.values[:, 0])
        assert torch.equal(found.margin[first:stop], top.values[:, 0] - top.values[:, 1])
        assert torch.equal(found.first[first:stop], top.indices[:, 0])


@pytest.mark.parametrize("place", PLACES)
def test_exact_has_the_decoders_bits(place: str) -> None:
    both(place)


@pytest.mark.parametrize("place", ["qwen35/hf", "deepseekv3/hf", "qwen35moe/gguf/trunk-Q4_K.gguf"])
def test_exact_has_the_decoders_bits_in_bfloat16(place: str) -> None:
    both(place, "bfloat16")


def test_exact_has_the_bits_whatever_rows_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer takes some rows at a time, of several passages where it may: where it cuts them changes nothing."""
    monkeypatch.setattr(trunk_pass, "MIX_ROWS", 64)
    for name in ("FEED_ROWS", "EXPERT_ROWS"):
        monkeypatch.setattr(trunk_pass, name, 5)
    for name in ("qwen35", "qwen35moe", "deepseekv3", "deepseekv4"):
        both(f"{name}/hf")


@pytest.mark.parametrize("place", PLACES)
def test_free_arithmetic_chooses_the_same(place: str) -> None:
    """At every position; what differs must be a near-tie, and its margin is shown."""
    passages, model = short(place.split("/")[0]), ordinary(place)
    one = streamed(place, passages, exact=False)
    ended = through(one)
    with torch.inference_mode():
        first = best(one.arithmetic, ended.post, one.trunk.output).first
    for passage, start, stop in passages.bounds():
        with torch.inference_mode():
            top = model.trunk.logits(read(model, passage)).topk(2)
        other = first[start:stop] != top.indices[:, 0]
        margins = (top.values[:, 0] - top.values[:, 1])[other]
        assert (margins < NEAR).all(), f"{place}: other choices at margins {margins.tolist()}"


@pytest.mark.parametrize("name", TRAINED)
def test_what_transformers_wrote_is_what_it_chooses(name: str) -> None:
    """Free arithmetic on every golden text: choices and margins that transformers recorded."""
    passages = Passages(own_texts(name))
    one = streamed(f"{name}/hf", passages, exact=False)
    ended = through(one)
    with torch.inference_mode():
        found = best(one.arithmetic, ended.post, one.trunk.output)
    for passage, first, stop in passages.bounds():
        chosen = found.first[first + passage.start - 1 : stop - 1]
        assert tuple(chosen.tolist()) == passage.ids[passage.start :]


def test_several_passages_are_each_alone() -> None:
    for name in ("qwen35", "deepseekv4"):
        passages = short(name)
        together = through(streamed(f"{name}/hf", passages))
        for passage, first, stop in passages.bounds():
            alone = through(streamed(f"{name}/hf", Passages((passage,))))
            assert torch.equal(together.pre[first:stop], alone.pre)
            assert torch.equal(together.post[first:stop], alone.post)


def test_a_token_before_changes_what_follows_and_nothing_else() -> None:
    """The pass is causal, and a passage does not see the one before it."""
    passages = short("qwen35")
    changed = list(passages.all)
    ids = list(changed[0].ids)
    ids[50] ^= 1
    changed[0] = Passage(tuple(ids), changed[0].start)
    one = through(streamed("qwen35/hf", passages)).post
    other = through(streamed("qwen35/hf", Passages(tuple(changed)))).post
    same = (one == other).all(-1)
    assert same[:50].all()
    assert not same[50 : len(ids)].any()
    assert same[len(ids) :].all()


def test_every_layer_counts_once() -> None:
    """States change with every layer, and after the last there is none to do."""
    one = streamed("qwen35/hf", short("qwen35"))
    one.begin()
    states = [one.states.clone()]
    for _ in range(one.n_layers):
        one.layer()
        states.append(one.states.clone())
    assert one.done == one.n_layers == 4
    assert all(not torch.equal(a, b) for a, b in pairwise(states))


def test_a_layer_that_overflows_is_named(tmp_path: Path) -> None:
    arrays = toy.weights(False)
    arrays["model.layers.1.mlp.down_proj.weight"] = np.full_like(arrays["model.layers.1.mlp.down_proj.weight"], 3e38)
    folder = toy.write_hf(tmp_path / "toy", arrays, False)
    one = streamed(folder, Passages((Passage((1, 2, 3)),)))
    one.begin()
    one.layer()
    with pytest.raises(CorruptError, match="layer 1") as caught:
        one.layer()
    assert caught.value.hint
