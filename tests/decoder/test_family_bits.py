"""Plain and speculative decoding of every family, stored in every way: the same logits, bit for bit.

Random weights, where every part of a layer takes part; a third of the drafts are spoiled, so that drafts are accepted
and rejected at every length.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.attention import Attention
from mtptools.decoder.cache import KVCache
from mtptools.decoder.deltanet import DeltaNet
from mtptools.decoder.latent import LatentAttention
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import RECURRENCES, HeadWiring
from mtptools.decoder.parity import compare
from mtptools.decoder.sampling import GREEDY, Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import Trace
from tests.random_checkpoints import Checkpoints

KINDS = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "glm4bare", "glm4lite", "deepseekv3", "deepseekv3full")
STORED = [
    *[(kind, stored) for kind in KINDS for stored in ("F32", "Q4_K")],
    *[("mimo", stored) for stored in ("hf-F32", "hf-BF16", "hf-FP8")],
    ("deepseekv3", "hf-FP8"),
    ("glm4moe", "Q8_0"),
]
DEEP = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "glm4lite", "deepseekv3", "mimo")
SAMPLED = Sampling(temperature=1.0, top_k=50, seed=11)
PROMPT = [7, 300, 12, 5, 77]
LONG = random.Random(3).choices(range(2044), k=59)  # a text after it crosses the edge of a chunk of keys at 64
TOKENS = 12
ECHO = 0.05


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    checkpoints = Checkpoints(tmp_path_factory.mktemp("bits"))

    @cache
    def get(kind: str, stored: str, dtype: str = "float32", depth: int = 1, echo: float | None = None) -> Model:
        concat = "he" if kind == "mimo" else "eh"
        path = checkpoints.get(kind, stored, depth=depth, echo=echo)
        return load_model(open_checkpoint(path), wiring=HeadWiring(concat=concat), dtype=dtype, check=False)

    return get


class Spoiled:
    """For drafts the true continuation, a third of it made wrong."""

    def __init__(self, plain: Trace) -> None:
        self.text, self.random = plain.tokens, random.Random(1)
        self.emitted: list[int] = []

    def __call__(self, drafts: list[int], step: int) -> list[int]:
        at = len(self.emitted)
        return [t ^ 1 if self.random.random() < 1 / 3 else t for t in self.text[at : at + len(drafts)]]


def spoiled(model: Model, plain: Trace, k: int, mode: str = "fast", **options: Any) -> Trace:
    """A speculative run with spoiled drafts, found equal to the plain one."""
    spoil = Spoiled(plain)
    trace = decode_speculative(
        model, plain.prompt, plain.requested, k, mode=mode, corrupt=spoil, on_tokens=spoil.emitted.extend, **options
    )
    assert compare(plain, trace).equal, (k, mode, options, compare(plain, trace))
    assert trace.tokens == plain.tokens
    return trace


@pytest.mark.parametrize(("kind", "stored"), STORED)
def test_bits(kind: str, stored: str, load: Callable[..., Model]) -> None:
    model = load(kind, stored)
    rejected = accepted = 0
    texts = set()
    for sampling, ks, serial in ((GREEDY, (1, 3, 8), 8), (SAMPLED, (2, 5), 2)):
        plain = decode_plain(model, PROMPT, TOKENS, sampling=sampling)
        texts.add(tuple(plain.tokens))
        for k in ks:
            drafts = spoiled(model, plain, k, sampling=sampling).drafts
            if k == serial:
                assert drafts == spoiled(model, plain, k, "serial", sampling=sampling).drafts
            accepted += sum(drafts.accepted)
            rejected += sum(drafts.drafted) - sum(drafts.accepted)
    assert len(texts) == 2
    assert accepted > 15
    assert rejected > 15


@pytest.mark.parametrize("kind", [*KINDS, "mimo"])
def test_bits_in_bfloat16(kind: str, load: Callable[..., Model]) -> None:
    model = load(kind, "hf-BF16", "bfloat16")
    for sampling, ks in ((GREEDY, (1, 5)), (SAMPLED, (3, 8))):
        plain = decode_plain(model, PROMPT, TOKENS, sampling=sampling)
        for k in ks:
            spoiled(model, plain, k, sampling=sampling)
    spoiled(model, plain, 3, "serial", sampling=SAMPLED)
    assert decode_plain(load(kind, "hf-BF16"), PROMPT, 1).digests != decode_plain(model, PROMPT, 1).digests


@pytest.mark.parametrize("kind", [*KINDS, "mimo"])
def test_bits_across_a_chunk_of_keys(kind: str, load: Callable[..., Model]) -> None:
    model = load(kind, "hf-F32")
    plain = decode_plain(model, LONG, TOKENS)
    for k in (2, 8):
        spoiled(model, plain, k)


@pytest.mark.parametrize("recurrence", RECURRENCES)
@pytest.mark.parametrize(("kind", "depth"), [*((kind, 3) for kind in DEEP), ("qwen35", 2), ("deepseekv3", 2)])
def test_recurrences(kind: str, depth: int, recurrence: str, load: Callable[..., Model]) -> None:
    """More layers, and more drafts than layers; drafts of the head's own, right now and then, and spoiled ones."""
    model = load(kind, "hf-F32", depth=depth, echo=ECHO)
    head = model.require_head()
    assert head.depth == depth
    plain = decode_plain(model, PROMPT, TOKENS)
    accepted = 0
    for recycle, k in (("post", 5), ("pre", 2)):
        wired = model.with_head(head.rewired(recurrence=recurrence, recycle=recycle))
        trace = decode_speculative(wired, PROMPT, TOKENS, k)
        serial = decode_speculative(wired, PROMPT, TOKENS, k, mode="serial")
        assert compare(plain, trace).equal
        assert compare(plain, serial).equal
        assert trace.drafts == serial.drafts
        accepted += sum(trace.drafts.accepted)
    spoiled(wired, plain, 8)
    assert accepted > 4


# --- the comparison can fail -------------------------------------------------------------------------------------


def test_families_mix_as_they_should(load: Callable[..., Model]) -> None:
    """The kinds above do reach every mixer."""
    mixers = {type(block.mixer) for kind in KINDS for block in load(kind, "F32").trunk.blocks}  # type: ignore[attr-defined]
    assert mixers == {Attention, DeltaNet, LatentAttention}


@pytest.mark.parametrize("kind", ["glm4moe", "glm4lite", "deepseekv3"])
def test_keys_kept_too_long_are_caught(kind: str, load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected draft that stays in the cache of keys."""
    model = load(kind, "F32")
    plain = decode_plain(model, PROMPT, TOKENS)
    honest = KVCache.rollback

    def late(self: KVCache, length: int) -> None:
        honest(self, min(length + 1, self.length))

    monkeypatch.setattr(KVCache, "rollback", late)
    with pytest.raises(AssertionError):
        spoiled(model, plain, 3)


@pytest.mark.parametrize("kind", ["qwen3next", "deepseekv3", "mimo"])
def test_a_last_bit_is_caught(kind: str, load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit in the last place of one norm, in passes of several rows alone: tokens stay, logits part."""
    model = load(kind, "hf-F32")
    plain = decode_plain(model, PROMPT, TOKENS)
    before = type(model.trunk).forward

    def forward(self: Any, ids: Any, cache: Any) -> Any:
        states = before(self, ids, cache)
        if 1 < len(ids) < len(PROMPT):
            states.post.view(torch.int32)[:, 0] += 1
        return states

    monkeypatch.setattr(type(model.trunk), "forward", forward)
    with pytest.raises(AssertionError):
        spoiled(model, plain, 3)
