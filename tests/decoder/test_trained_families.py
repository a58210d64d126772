"""The trained fixtures of other families than Qwen3.5: goldens by transformers, from HF and from a GGUF made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.parity import compare
from mtptools.decoder.sampling import Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative, prefill
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.decoder.test_trained import Golden, Spoiled, goldens

TOLERANCE = 1e-4
HEAD_TOLERANCE = 2e-4
"""Of the drafting layer's logits: errors of the trunk go through one more layer."""

CASES = [
    *((name, kind) for name in ("deepseekv3", "glm4moe", "qwen3next") for kind in ("hf", "F32")),
    *(("deepseekv4", kind) for kind in ("hf", "native")),
]


def stored(name: str, kind: str, folder: Path) -> Path:
    """A fixture as HF, in the types of its release ("native": FP8 and FP4, the same values), or as GGUF of a type."""
    source = FIXTURES / name / "hf"
    if kind == "hf":
        return source
    if kind == "native":
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(FIXTURES))  # its scripts import each other by name
            from layout_v4 import write_native
        write_native(source, folder / kind)
        return folder / kind
    out = folder / f"{name}-{kind}.gguf"
    write(convert_gguf(open_checkpoint(source), out.name, outtype=kind), out)  # type: ignore[arg-type]
    return out


ONCE = pytest.mark.parametrize(
    "artifact",
    [("deepseekv3", "F32"), ("glm4moe", "hf"), ("qwen3next", "F32"), ("deepseekv4", "native")],
    indirect=True,
    ids="-".join,
)
"""A family once: states and logits were compared both ways, and what is decoded from them takes its time."""

Artifact = tuple[Model, dict[str, Golden]]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def artifact(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Model, dict[str, Golden]]:
    name, kind = request.param
    model = load_model(open_checkpoint(stored(name, kind, tmp_path_factory.mktemp("made"))))
    head = model.require_head()
    return model.with_head(head.rewired(mask_first=False)), goldens(FIXTURES / name)  # as they were trained


@torch.inference_mode()
def test_trunk(artifact: Artifact) -> None:
    model, found = artifact
    for name, golden in found.items():
        states = prefill(model, golden["ids"].tolist(), model.trunk.new_cache())
        logits = model.trunk.logits(states)[golden["logits_at"].tolist()].numpy()
        assert np.abs(logits - golden["logits"]).max() < TOLERANCE, name
        hidden = states.post[golden["hidden_at"].tolist()].numpy()
        assert np.abs(hidden - golden["hidden"]).max() < TOLERANCE, name


@ONCE
def test_greedy_tokens(artifact: Artifact) -> None:
    model, found = artifact
    for name, golden in found.items():
        trace = decode_plain(model, golden["ids"].tolist(), len(golden["greedy"]))
        assert trace.tokens == golden["greedy"].tolist(), name
        assert np.abs(np.array(trace.margins) - golden["margins"]).max() < 4 * TOLERANCE, name


@torch.inference_mode()
def test_head(artifact: Artifact) -> None:
    """Every layer over the whole prompt, teacher forced, each on the states of the one before."""
    model, found = artifact
    head = model.require_head()
    for name, golden in found.items():
        ids = golden["ids"].tolist()
        states = prefill(model, ids, model.trunk.new_cache()).tap(head.wiring.tap)
        for layer in range(head.depth):
            rows = len(ids) - 1 - layer
            cache = head.layers[layer].block.new_cache()
            post, states = head.step(layer, states[:rows], ids[1 + layer : 1 + layer + rows], cache, layer)
            key = "head" if layer == 0 else f"head{layer + 1}"
            logits = head.logits(post, layer).numpy()
            assert np.abs(logits[golden[f"{key}_at"].tolist()] - golden[f"{key}_logits"]).max() < HEAD_TOLERANCE, name
            assert (logits.argmax(-1) == golden[f"{key}_argmax"]).all(), name


def drafted(model: Model, text: list[int], k: int) -> list[int]:
    """k drafts after a text, by a drafter that has seen it in one piece."""
    head = model.require_head()
    states = prefill(model, text[:-1], model.trunk.new_cache()).tap(head.wiring.tap)
    drafter = Drafter(head)
    drafter.observe(states, text[1:])
    return drafter.draft(k, lambda row, at: int(row.argmax()))


@ONCE
@torch.inference_mode()
def test_every_draft_of_the_library(artifact: Artifact) -> None:
    """generate(use_mtp=True): each layer drafts one token, and what the trunk confirms goes on."""
    model, found = artifact
    compared = 0
    for name, golden in found.items():
        if "mtp_drafts" not in golden or compared > 40:  # every draft costs a pass over the whole text
            continue
        text, emitted = golden["ids"].tolist(), 1
        for drafts, matches in zip(golden["mtp_drafts"].tolist(), golden["mtp_matches"].tolist(), strict=True):
            ours = drafted(model, text + golden["greedy"][:emitted].tolist(), len(drafts))
            assert ours == drafts, (name, emitted)
            compared += len(drafts)
            emitted += matches + 1
            if emitted >= len(golden["greedy"]):
                break
    assert compared > 40 or not any("mtp_drafts" in golden for golden in found.values())


@ONCE
@torch.inference_mode()
def test_recurrent_drafts(artifact: Artifact) -> None:
    """One layer that runs on its own state: three drafts after every prefix of the greedy text, but where they tie."""
    model, found = artifact
    for name, golden in found.items():
        drafts = golden.get("chain", golden.get("drafts", ()))
        for at in range(0, len(drafts), 17):
            if "draft_margins" in golden and golden["draft_margins"][at].min() < 10 * HEAD_TOLERANCE:
                continue
            text = [*golden["ids"].tolist(), *golden["greedy"][: at + 1].tolist()]
            assert drafted(model, text, 3) == drafts[at].tolist(), (name, at)


BITS = [
    ("deepseekv3", "hf", "float32"),
    ("glm4moe", "Q8_0", "bfloat16"),
    ("qwen3next", "Q8_0", "bfloat16"),
    ("deepseekv4", "native", "bfloat16"),
]


@pytest.mark.parametrize(("name", "kind", "dtype"), BITS, ids=["-".join(case) for case in BITS])
def test_bits(name: str, kind: str, dtype: str, tmp_path: Path) -> None:
    """Plain and speculative, greedy and sampled, a third of the drafts spoiled, past chunk and window ends."""
    model = load_model(open_checkpoint(stored(name, kind, tmp_path)), dtype=dtype)
    prompts = [golden["ids"].tolist() for golden in goldens(FIXTURES / name).values()]
    cases: list[tuple[list[int], Sampling]] = [
        (max(prompts, key=len), Sampling()),
        (min(prompts, key=len), Sampling(temperature=1.0, top_k=30, seed=3)),
    ]
    rejected = accepted = 0
    for ids, sampling in cases:
        plain = decode_plain(model, ids, 20, sampling=sampling)
        for k in (5,) if sampling.temperature else (3, 8):
            spoil = Spoiled(plain.tokens)
            spoiled: dict[str, Any] = {"corrupt": spoil, "on_tokens": spoil.emitted.extend}
            for arm in ({}, spoiled, {"mode": "serial"}) if k == 3 else (spoiled,):
                trace = decode_speculative(model, ids, 20, k, sampling=sampling, **arm)
                assert compare(plain, trace).equal, (k, arm.keys())
                accepted += sum(trace.drafts.accepted)
                rejected += sum(trace.drafts.drafted) - sum(trace.drafts.accepted)
    assert accepted > 20
    assert rejected > 20
