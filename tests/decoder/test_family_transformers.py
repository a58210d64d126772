"""Trunks of every family against transformers, on random weights, and faults that this comparison must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures import random_models
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.mtp_head import HeadWiring
from mtptools.decoder.settings import RopeSettings, Routing, Settings, read_settings
from tests.decoder import oracle
from tests.random_checkpoints import Checkpoints

pytest.importorskip("transformers", reason="needs transformers: pip install 'mtptools[dev]'")
pytestmark = [pytest.mark.filterwarnings("default")]

TOLERANCE = 1e-4
"""Of logits that spread by 2; the largest difference found is 7.1e-5 (qwen35, whose own chunked form is 6e-5 off what
it is in float64), elsewhere 3.5e-5."""
SHOWS = 100 * TOLERANCE
"""What a fault must change."""

QWEN = ("qwen35", "qwen35moe", "qwen3next")
GQA = ("glm4moe", "glm4air", "glm4bare")
V3 = ("deepseekv3", "deepseekv3full", "deepseekv3halves")
NO_GGUF = ("mimo", "deepseekv3halves")
"""llama.cpp has no architecture for the one; a GGUF of the other would mean neighbours, and has one mscale."""
EVERY = [
    (kind, stored)
    for kind in random_models.KINDS
    for stored in ("hf-F32", "F32")
    if stored != "F32" or kind not in NO_GGUF
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("families"))


@pytest.fixture(scope="module")
def theirs(checkpoints: Checkpoints) -> Callable[[str], torch.Tensor]:
    """Logits [150, vocab] of transformers."""

    @cache
    def get(kind: str) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = oracle.trunk(kind, checkpoints.get(kind))(torch.tensor([oracle.IDS])).logits[0]
        return logits

    return get


@torch.inference_mode()
def ours(path: Path, tokens: int) -> torch.Tensor:
    model = load_model(open_checkpoint(path), wiring=HeadWiring(), check=False)
    return model.trunk.logits(model.trunk.forward(oracle.IDS[:tokens], model.trunk.new_cache()))


@pytest.mark.parametrize(("kind", "stored"), EVERY)
def test_trunk_logits(kind: str, stored: str, checkpoints: Checkpoints, theirs: Callable[[str], torch.Tensor]) -> None:
    path = checkpoints.get(kind, stored)
    for tokens in (8, 150):
        got, wanted = ours(path, tokens), theirs(kind)[:tokens]
        assert (got - wanted).abs().max() < TOLERANCE
        assert torch.equal(got.argmax(-1), wanted.argmax(-1))
    assert len(set(got.argmax(-1).tolist())) > 100  # a model that says the same everywhere would hide faults
    assert 1 < got.std() < 3


def test_latent_epsilon(checkpoints: Checkpoints, theirs: Callable[[str], torch.Tensor]) -> None:
    """The one thing changed in transformers: with its own 1e-6 the comparison above would fail."""
    model = oracle.trunk("glm4lite", checkpoints.get("glm4lite"))
    for layer in model.model.layers:
        oracle.latent_epsilon(layer, 1e-6)
    with torch.inference_mode():
        plain = model(torch.tensor([oracle.IDS])).logits[0]
    assert TOLERANCE < (plain - theirs("glm4lite")).abs().max() < SHOWS


# --- faults in the settings --------------------------------------------------------------------------------------


def rope(**changes: object) -> Callable[[Settings], Settings]:
    return lambda found: replace(found, rope=replace(found.rope, **changes))  # type: ignore[arg-type]


def routing(**changes: object) -> Callable[[Settings], Settings]:
    def change(found: Settings) -> Settings:
        assert isinstance(found.routing, Routing)
        return replace(found, routing=replace(found.routing, **changes))  # type: ignore[arg-type]

    return change


def other_pairs(found: Settings) -> Settings:
    pairs = {"halves": "adjacent", "adjacent": "halves"}[found.rope.pairs]
    return replace(found, rope=replace(found.rope, pairs=pairs))


FAULTS: dict[str, tuple[tuple[str, ...], Callable[[Settings], Settings]]] = {
    "the other pairs turn": (random_models.KINDS, other_pairs),
    "whole heads turn": (("qwen35", "qwen35moe", "qwen3next", *GQA), rope(dim=64)),
    "another base": (("mimo", "glm4lite"), rope(theta=10000.0)),
    "no yarn": (("deepseekv3", "deepseekv3halves"), rope(yarn=None)),
    "no mscale of scores": (("deepseekv3", "deepseekv3halves"), rope(scores=1.0)),
    "mscale of values on top": (("deepseekv3",), rope(magnitude=1.1386)),
    "no mscale of values": (("deepseekv3halves",), rope(magnitude=1.0)),
    "experts of any group": (("deepseekv3",), routing(groups=1)),
    "weights not scaled": (("deepseekv3", "glm4moe", "glm4lite"), routing(scale=1.0)),
    "weights not normalized": (("qwen35moe", "qwen3next", "deepseekv3", "glm4moe"), routing(normalized=False)),
    "weights normalized": (("deepseekv3full",), routing(normalized=True)),
    "an expert less": (("qwen35moe", "deepseekv3full", "glm4lite"), routing(used=1)),
    "scores by softmax": (("glm4moe", "deepseekv3"), routing(scoring="softmax")),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (kinds, _) in FAULTS.items() for kind in kinds])
def test_a_wrong_setting_shows(
    name: str,
    kind: str,
    checkpoints: Checkpoints,
    theirs: Callable[[str], torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mtptools.decoder.load.read_settings", lambda ckpt: FAULTS[name][1](read_settings(ckpt)))
    monkeypatch.setattr("mtptools.decoder.load.check_claimed", lambda source, kind: None)  # it sees a bias left over
    got = ours(checkpoints.get(kind), 24)
    assert (got - theirs(kind)[:24]).abs().max() > SHOWS


# --- faults in the weights ---------------------------------------------------------------------------------------


def halves(rows: np.ndarray) -> np.ndarray:
    return np.concatenate(np.split(rows, 2)[::-1])


def gate_first(rows: np.ndarray) -> np.ndarray:
    """q_proj with each head's gate before its query."""
    return np.flip(rows.reshape(4, 2, 64, -1), 1).reshape(rows.shape)


def blocks_of_all_heads(rows: np.ndarray) -> np.ndarray:
    """q_proj with all queries, then all gates."""
    return rows.reshape(4, 2, 64, -1).swapaxes(0, 1).reshape(rows.shape)


def values_first(rows: np.ndarray) -> np.ndarray:
    """kv_b with each head's values before its keys."""
    heads = rows.reshape(4, 80, -1)
    return np.concatenate((heads[:, 48:], heads[:, :48]), axis=1).reshape(rows.shape)


def key_first(rows: np.ndarray) -> np.ndarray:
    """kv_a with the rotary key before the latent."""
    return np.concatenate((rows[-16:], rows[:-16]))


Change = Callable[[np.ndarray], np.ndarray]
WRONG: dict[str, tuple[tuple[str, ...], str, Change]] = {
    "no bias of queries": (("glm4moe", "glm4air", "mimo"), "q_proj.bias", np.zeros_like),
    "no bias of keys": (("glm4moe", "glm4air", "mimo"), "k_proj.bias", np.zeros_like),
    "no bias of values": (("glm4moe", "glm4air", "mimo"), "v_proj.bias", np.zeros_like),
    "no norm of queries": (("glm4moe",), "q_norm.weight", np.ones_like),
    "no norm of keys": (("glm4moe",), "k_norm.weight", np.ones_like),
    "norms off by one": (("qwen35", "qwen3next"), "input_layernorm.weight", lambda w: w - 1),
    "norms one too many": (("glm4moe", "deepseekv3", "mimo"), "input_layernorm.weight", lambda w: w + 1),
    "gate before query": (QWEN, "q_proj.weight", gate_first),
    "gates after queries": (QWEN, "q_proj.weight", blocks_of_all_heads),
    "convolution backwards": (QWEN, "conv1d.weight", lambda w: w[..., ::-1].copy()),
    "no step size": (QWEN, "dt_bias", np.zeros_like),
    "decay not exponential": (QWEN, "A_log", np.zeros_like),
    "z and values exchanged": (("qwen3next",), "in_proj_qkvz.weight", halves),
    "b and a exchanged": (("qwen3next",), "in_proj_ba.weight", halves),
    "no switch": (("qwen35moe", "qwen3next"), "shared_expert_gate.weight", np.zeros_like),
    "up and gate exchanged": (("qwen35moe",), "experts.gate_up_proj", lambda w: np.roll(w, 256, axis=1)),
    "no bias of routers": (("glm4moe", "glm4lite", "deepseekv3"), "e_score_correction_bias", np.zeros_like),
    "values before keys": (("glm4lite", "deepseekv3"), "kv_b_proj.weight", values_first),
    "key before latent": (("glm4lite", "deepseekv3"), "kv_a_proj_with_mqa.weight", key_first),
    "no norm of latents": (("glm4lite", "deepseekv3full"), "kv_a_layernorm.weight", np.ones_like),
    "no norm of query latents": (("deepseekv3",), "q_a_layernorm.weight", np.ones_like),
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, (kinds, *_) in WRONG.items() for kind in kinds])
def test_a_wrong_weight_shows(name: str, kind: str, theirs: Callable[[str], torch.Tensor], tmp_path: Path) -> None:
    """One kind of weight in trunk layers as another reading of it would have it."""
    _, end, change = WRONG[name]
    values = random_models.tensors(kind)
    wrong = [tensor for tensor in values if tensor.endswith(end)]
    assert wrong
    random_models.save(kind, tmp_path / "hf", {**values, **{tensor: change(values[tensor]) for tensor in wrong}})
    got = ours(tmp_path / "hf", 24)
    assert (got - theirs(kind)[:24]).abs().max() > SHOWS


def test_settings_of_hf_and_gguf_agree(checkpoints: Checkpoints) -> None:
    """Two spellings of one model; where GGUF does not say, the tensors do."""
    for kind in random_models.KINDS:
        if kind in NO_GGUF:
            continue
        hf, gguf = (read_settings(open_checkpoint(checkpoints.get(kind, stored))) for stored in ("hf-F32", "F32"))
        assert gguf.biases in (None, hf.biases)
        assert gguf.qk_norm in (None, hf.qk_norm)
        assert replace(gguf, rope=hf.rope, biases=hf.biases, qk_norm=hf.qk_norm, routing=hf.routing) == hf
        for ours_, theirs_ in ((hf.rope, gguf.rope), (hf.routing, gguf.routing)):
            assert type(ours_) is type(theirs_)
            if isinstance(ours_, RopeSettings | Routing):
                for field in ours_.__dataclass_fields__:
                    left, right = getattr(ours_, field), getattr(theirs_, field)
                    assert left == pytest.approx(right, rel=1e-6) if isinstance(left, float) else left == right, field
