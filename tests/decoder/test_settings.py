"""Settings that cannot be, or that name formulas the decoder does not have, are refused; defaults are the classes'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures import random_models
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.containers.gguf_values import scalar_value
from mtptools.decoder.load import load_model
from mtptools.decoder.settings import read_settings
from mtptools.errors import CodecError, CorruptError, InputError
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.writer import write
from tests import rewrite

YARN = {"type": "yarn", "factor": 2, "original_max_position_embeddings": 64}


@pytest.fixture
def edited(tmp_path: Path) -> Any:
    """A random model with its config.json changed; None takes a key out."""

    def make(kind: str, **changes: Any) -> Checkpoint:
        random_models.build(kind, tmp_path)
        config = {**json.loads((tmp_path / "config.json").read_text()), **changes}
        kept = {key: value for key, value in config.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        return open_checkpoint(tmp_path)

    return make


@pytest.mark.parametrize(
    "changes",
    [
        {"n_group": 3},
        {"n_group": 8},
        {"topk_group": 5},
        {"num_experts_per_tok": 9},
        {"num_experts_per_tok": 0},
        {"topk_group": 1, "num_experts_per_tok": 4},
        {"qk_rope_head_dim": 15},
        {"rope_theta": 1},
        {"scoring_func": "tanh"},
        {"topk_group": 0},
        {"n_group": 0},
        {"routed_scaling_factor": 0},
        {"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 64}},
        {"rope_scaling": {**YARN, "mscale_all_dim": -40}},
    ],
    ids=str,
)
def test_what_cannot_be(edited: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptError, match=r"which cannot be|is not there"):
        read_settings(edited("deepseekv3", **changes))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("glm4moe", {"hidden_act": "gelu"}),
        ("mimo", {"use_sliding_window": True}),
        ("deepseekv3", {"attention_bias": True}),
        ("deepseekv3", {"topk_method": "greedy"}),
        ("deepseekv3", {"moe_layer_freq": 2}),
        ("glm4moe", {"rope_scaling": {"type": "longrope", "factor": 2}}),
    ],
    ids=str,
)
def test_formulas_that_are_not_there(edited: Any, kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        read_settings(edited(kind, **changes))
    assert caught.value.hint


def test_defaults_are_those_of_the_configuration_classes(edited: Any) -> None:
    """transformers 5.23, DeepseekV3Config."""
    found = read_settings(edited("deepseekv3", topk_group=None, routed_scaling_factor=None)).routing
    assert found is not None
    assert (found.groups_used, found.scale) == (4, 2.5)


def test_routers_of_qwen35_always_normalize(edited: Any) -> None:
    assert read_settings(edited("qwen35moe", norm_topk_prob=False)).routing.normalized  # type: ignore[union-attr]
    assert not read_settings(edited("qwen3next", norm_topk_prob=False)).routing.normalized  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "changes", "what"),
    [
        ("deepseekv3", {"rope_interleave": False}, "rope_interleave"),
        ("qwen3next", {"norm_topk_prob": False}, "norm_topk_prob"),
        (
            "glm4moe",
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2,
                    "original_max_position_embeddings": 64,
                    "attention_factor": 3,
                }
            },
            "attention_factor",
        ),
    ],
    ids=["halves", "unnormalized", "attention factor"],
)
def test_what_a_gguf_would_lose_is_not_converted(edited: Any, kind: str, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(CodecError, match=what):
        convert_gguf(edited(kind, **changes), "x.gguf", outtype="F32")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("deepseekv3", {"n_routed_experts": 0}),
        ("glm4moe", {"num_attention_heads": 0}),
        ("glm4moe", {"num_key_value_heads": 0}),
        ("glm4moe", {"num_key_value_heads": 3}),
        ("glm4moe", {"hidden_size": 0}),
        ("qwen35", {"linear_num_key_heads": 0}),
        ("qwen35", {"linear_conv_kernel_dim": 0}),
        ("glm4moe", {"partial_rotary_factor": 0}),
        ("deepseekv3", {"rope_scaling": {**YARN, "beta_fast": 0}}),
    ],
    ids=str,
)
def test_sizes_that_cannot_be(edited: Any, kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        load_model(edited(kind, **changes), check=False)
    assert caught.value.where
    assert caught.value.hint


@pytest.mark.parametrize(("key", "value", "wanted"), [("norm", None, False), ("norm", True, True), ("scale", 0.0, 1.0)])
def test_what_a_gguf_leaves_out(key: str, value: object, wanted: object, tmp_path: Path) -> None:
    """llama.cpp: weights are not normalized unless it is said, and a scale of 0 is none (llama-graph.cpp)."""
    random_models.build("deepseekv3", tmp_path / "hf")
    made = tmp_path / "made.gguf"
    write(convert_gguf(open_checkpoint(tmp_path / "hf"), made.name, outtype="F32"), made)
    said = None if value is None else scalar_value("bool" if key == "norm" else "f32", value)  # type: ignore[arg-type]
    file = rewrite.gguf(made, tmp_path / "x.gguf", metadata={f"deepseek2.expert_weights_{key}": said})
    found = read_settings(open_checkpoint(file)).routing
    assert found is not None
    assert (found.normalized if key == "norm" else found.scale) == wanted
