"""Every family that llama.cpp runs, on random weights in F32: its greedy tokens and log-probabilities are ours."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures import random_models
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.latent import LatentAttention
from mtptools.decoder.load import load_model
from mtptools.decoder.speculate import decode_plain
from tests import rewrite
from tests.conftest import load_script
from tests.random_checkpoints import Checkpoints

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

KINDS = [kind for kind in random_models.KINDS if kind not in ("mimo", "deepseekv3full", "deepseekv3halves")]
"""llama.cpp has no architecture for MiMo-7B, wants a query latent unless a model has as many layers as some release
without one, and knows neither rotary halves nor two mscales in deepseek2."""
PROMPTS = [random.Random(5).choices(range(2044), k=length) for length in (4, 24, 150)]
TOKENS = 24

NOISE = 5e-5
"""Of a log-probability. Found: 1.1e-5 at most, the order of float32 sums; transformers is as far from us."""
TIE = 4 * NOISE
"""Two logits move by at most NOISE each, up or down, and so does what they are compared with: a smaller margin may turn
over. Logits spread by 2: this is 1e-4 of it."""


@dataclass
class Compared:
    """of one prompt: tokens before the first that differs, our margin there (None: all agree), noise before it."""

    same: int
    margin: float | None
    noise: float


def compared(path: Path, answers: list[dict[str, Any]]) -> list[Compared]:
    """Our decoder on a file, and what llama.cpp answered."""
    model = load_model(open_checkpoint(path), check=False)
    found = []
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert len(answer["tokens"]) == TOKENS
        trace = decode_plain(model, prompt, TOKENS, keep_logits=range(TOKENS))
        pairs = zip(trace.tokens, answer["tokens"], strict=True)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), TOKENS)
        noise = 0.0
        for at, row in enumerate(answer["logprobs"][: min(same + 1, TOKENS)]):
            logits = trace.logits[at].astype(np.float64)
            logits -= logits.max()
            logits -= np.log(np.exp(logits).sum())
            noise = max([noise, *(abs(logits[token] - value) for token, value in row.items())])
        found.append(Compared(same, trace.margins[same] if same < TOKENS else None, float(noise)))
    return found


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    """Two spinning threads on a busy machine are slower than one by an order of magnitude."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    return cache(Checkpoints(tmp_path_factory.mktemp("random")).get)


@pytest.fixture(scope="module")
def llama(model_of: Callable[..., Path]) -> Callable[[str], list[dict[str, Any]]]:
    """What llama.cpp answers to PROMPTS."""
    return cache(lambda kind: load_script("random_llama").run(model_of(kind, "F32"), PROMPTS, TOKENS))


@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens_until_a_near_tie(
    kind: str,
    model_of: Callable[..., Path],
    llama: Callable[[str], list[dict[str, Any]]],
    record_property: Callable[[str, object], None],
) -> None:
    found = compared(model_of(kind, "F32"), llama(kind))
    record_property("compared", [vars(one) for one in found])
    assert sum(one.same for one in found) >= 40
    assert max(one.noise for one in found) < NOISE
    for prompt, one in enumerate(found):
        assert one.margin is None or one.margin < TIE, f"prompt {prompt} parts at token {one.same}, no near-tie"


FAULTS = {
    "qwen35": ("ssm_dt.bias", lambda rows: rows * 1.01),
    "qwen35moe": ("ffn_gate_inp_shexp.weight", lambda rows: rows * 0.9),
    "qwen3next": ("attn_q_norm.weight", lambda rows: rows * 1.01),
    "glm4moe": ("exp_probs_b.bias", lambda rows: rows[..., ::-1]),
    "glm4air": ("attn_k.bias", lambda rows: rows * 0.9),
    "glm4lite": ("attn_kv_a_norm.weight", lambda rows: rows * 1.01),
    "deepseekv3": ("exp_probs_b.bias", lambda rows: rows[..., ::-1]),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_small_fault_shows(
    kind: str, model_of: Callable[..., Path], llama: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    """One weight of one layer a little different in our file alone."""
    path, (end, change) = model_of(kind, "F32"), FAULTS[kind]
    name = next(name for name in open_checkpoint(path) if name.endswith(end))
    changed = rewrite.gguf(path, tmp_path / "changed.gguf", edit={name: change})
    found = compared(changed, llama(kind))
    assert max(one.noise for one in found) > 10 * NOISE


def test_the_epsilon_of_latents_is_the_model_s(
    model_of: Callable[..., Path], llama: Callable[[str], list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers always takes 1e-6; llama.cpp, as we do, what the model says: 1e-5 for GLM-4.7-Flash."""
    honest = LatentAttention.__init__

    def fixed(self: LatentAttention, weights: Any, rope: Any, eps: float, arithmetic: Any) -> None:
        honest(self, weights, rope, 1e-6, arithmetic)

    monkeypatch.setattr(LatentAttention, "__init__", fixed)
    found = compared(model_of("glm4lite", "F32"), llama("glm4lite"))
    assert max(one.noise for one in found) > NOISE
