"""The trained fixtures: goldens by transformers, parity and acceptance on real quantized files, every control."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.acceptance import first_hits, simulate
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.parity import compare
from mtptools.decoder.speculate import decode_plain, decode_speculative, prefill
from mtptools.decoder.tokenizer import load_tokenizer

Golden = dict[str, np.ndarray]

TOLERANCE = 1e-4
"""Logits, absolute. transformers' own chunked and stepwise forms of the DeltaNet differ by about half of it."""


def goldens(folder: Path) -> dict[str, Golden]:
    arrays = np.load(folder / "golden.npz")
    names = [key.removesuffix("_ids") for key in arrays if key.endswith("_ids")]
    return {
        name: {key.removeprefix(f"{name}_"): arrays[key] for key in arrays if key.startswith(f"{name}_")}
        for name in names
    }


@pytest.fixture(scope="module", params=["hf", "gguf/model-BF16.gguf"])
def artifact(request: pytest.FixtureRequest, trained: Path) -> Model:
    return load_model(open_checkpoint(trained / request.param))


@pytest.fixture(scope="module", params=["Q4_K"])
def grafted(request: pytest.FixtureRequest, trained: Path) -> Model:
    """A quantized trunk with the head of the BF16 file."""
    trunk = open_checkpoint(trained / f"gguf/trunk-{request.param}.gguf")
    return load_model(trunk, head=open_checkpoint(trained / "gguf/model-BF16.gguf"))


@torch.inference_mode()
def test_goldens(artifact: Model, trained: Path) -> None:
    for name, golden in goldens(trained).items():
        ids = golden["ids"].tolist()
        states = prefill(artifact, ids, artifact.trunk.new_cache())
        at = golden["logits_at"].tolist()
        logits = artifact.trunk.logits(states)[at].numpy()
        assert np.abs(logits - golden["logits"]).max() < TOLERANCE, name
        hidden = states.post[golden["hidden_at"].tolist()].numpy()
        assert np.abs(hidden - golden["hidden"]).max() < TOLERANCE, name
        head = artifact.require_head()
        drafter = Drafter(head)
        drafter.observe(states.post[:-1], ids[1:])
        cache = head.layers[0].block.new_cache()
        post, _ = head.step(0, states.post[:-1], ids[1:], cache, 0)
        rows = head.logits(post).numpy()
        assert np.abs(rows[golden["head_at"].tolist()] - golden["head_logits"]).max() < TOLERANCE, name
        assert (rows.argmax(-1) == golden["head_argmax"]).all(), name
        assert torch.equal(drafter.head.logits(drafter.ready[0])[0], torch.from_numpy(rows[-1]))


def test_greedy_tokens(artifact: Model, trained: Path) -> None:
    for name, golden in goldens(trained).items():
        wanted = golden["greedy"].tolist()
        trace = decode_plain(artifact, golden["ids"].tolist(), len(wanted))
        assert trace.tokens == wanted, name
        assert np.abs(np.array(trace.margins) - golden["margins"]).max() < 2 * TOLERANCE, name


def test_parity_and_simulation_on_quantized_trunks(grafted: Model, trained: Path) -> None:
    golden = max(goldens(trained).values(), key=lambda g: len(g["ids"]))
    ids = golden["ids"].tolist()
    plain = decode_plain(grafted, ids, 32, keep_states=True)
    for k in (1, 4):
        trace = decode_speculative(grafted, ids, 32, k)
        assert compare(plain, trace).equal
        assert simulate(grafted.require_head(), plain, k) == trace.drafts
    assert compare(plain, decode_speculative(grafted, ids, 32, 3, mode="serial")).equal


class Spoiled:
    """The true continuation with a third of the drafts made wrong: acceptances and rejections at every length."""

    def __init__(self, truth: list[int]) -> None:
        self.truth, self.random = truth, random.Random(7)
        self.emitted: list[int] = []

    def __call__(self, drafts: list[int], step: int) -> list[int]:
        at = len(self.emitted)
        return [t ^ 1 if self.random.random() < 1 / 3 else t for t in self.truth[at : at + len(drafts)]]


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "float32"), ("BF16", "bfloat16"), ("Q4_K", "float32")])
def test_bits_with_rejected_drafts_and_a_long_prompt(
    kind: str, dtype: str, trained: Path, trunk_of: Callable[[str, str], Path]
) -> None:
    """Logits of plain and speculative decoding, bit for bit, k from 1 to 4, with spoiled drafts and the head's own."""
    trunk = open_checkpoint(trunk_of(trained.name, kind))
    model = load_model(trunk, head=open_checkpoint(trained / "gguf/model-BF16.gguf"), dtype=dtype)
    prompts = [golden["ids"].tolist() for golden in goldens(trained).values()]
    assert max(map(len, prompts)) > 256
    rejected = accepted = 0
    for ids, ks in ((max(prompts, key=len), (1, 4)), (min(prompts, key=len), (2, 3))):
        plain = decode_plain(model, ids, 24)
        for k in ks:
            own = decode_speculative(model, ids, 24, k)
            assert compare(plain, own).equal
            spoil = Spoiled(plain.tokens)
            trace = decode_speculative(model, ids, 24, k, corrupt=spoil, on_tokens=spoil.emitted.extend)
            assert compare(plain, trace).equal
            accepted += sum(trace.drafts.accepted)
            rejected += sum(trace.drafts.drafted) - sum(trace.drafts.accepted)
    assert accepted > 25
    assert rejected > 25


def test_first_hits_against_the_golden_head(artifact: Model, trained: Path) -> None:
    """The head's argmax over the prompt, taken by transformers, is what `first_hits` would call a hit or a miss."""
    golden = max(goldens(trained).values(), key=lambda g: len(g["ids"]))
    ids = golden["ids"].tolist()
    half = len(ids) // 2
    trace = decode_plain(artifact, ids[:half], 2, keep_states=True)
    with torch.inference_mode():
        trace.states = prefill(artifact, ids, artifact.trunk.new_cache())
    trace.tokens = ids[half:]
    wanted = golden["head_argmax"][half - 1 : len(ids) - 2] == np.array(ids[half + 1 :])
    assert (first_hits(artifact.require_head(), trace) == wanted).all()


def test_tokenizers_agree(trained: Path) -> None:
    from_json = load_tokenizer(open_checkpoint(trained / "hf"))
    from_gguf = load_tokenizer(open_checkpoint(trained / "gguf/model-BF16.gguf"))
    texts = ["The United States, don't 12345\n\n  naïve", "<|im_start|>user\nhi<|im_end|>", "日本語 🎉"]
    texts += [from_json.decode(p["ids"]) for p in json.loads((trained / "prompts.json").read_text())["prompts"]]
    for text in texts:
        assert from_json.encode(text) == from_gguf.encode(text)
        assert from_json.decode(from_json.encode(text)) == from_gguf.decode(from_gguf.encode(text))
    assert from_json.stop_ids & from_gguf.stop_ids
