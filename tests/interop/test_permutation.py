"""The permutation models themselves: the same bytes everywhere, the names transformers asks for, the cycle as promised.

Their heads are judged by llama.cpp, in the tests of the surgery.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import xxhash

from fixtures.releases import load
from tests.conftest import FIXTURES, load_script

permutation = load_script("permutation")
STEPS = 24
RELEASES = {
    "qwen35": "qwen3.5-27b",
    "qwen35moe": "qwen3.6-35b-a3b",
    "qwen3next": "qwen3-next-80b-a3b",
    "glm4moe": "glm-4.5-fp8",
    "glm4lite": "glm-4.7-flash",
    "deepseekv3": "deepseek-v3",
}


@pytest.fixture(params=permutation.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_bytes_are_those_the_converter_was_given(kind: str, dtype: str, tmp_path: Path) -> None:
    """Else the digests in fixtures/converted say nothing: make them again with fixtures/converter_facts.py."""
    permutation.build(kind, tmp_path, dtype=dtype)
    found = {path.name: xxhash.xxh3_128(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    assert found == json.loads((FIXTURES / "converted" / f"{kind}.json").read_text())["build"][dtype]


@pytest.mark.parametrize("kind", ["qwen35moe", "qwen3next"])
def test_experts_hold_the_same_values_in_both_layouts(kind: str) -> None:
    fused, single = (permutation.tensors(kind, experts=layout) for layout in ("fused", "single"))
    stem = "mtp.layers.0.mlp.experts"
    for e in range(4):
        rows = [single[f"{stem}.{e}.{name}_proj.weight"] for name in ("gate", "up")]
        assert np.array_equal(np.concatenate(rows), fused[f"{stem}.gate_up_proj"][e])
        assert np.array_equal(single[f"{stem}.{e}.down_proj.weight"], fused[f"{stem}.down_proj"][e])


def test_seed_changes_every_tensor_and_the_cycle(kind: str) -> None:
    first, second = permutation.tensors(kind, seed=0), permutation.tensors(kind, seed=1)
    assert first.keys() == second.keys()
    assert not [name for name in first if np.array_equal(first[name], second[name])]
    assert not np.array_equal(permutation.cycle(0), permutation.cycle(1))


def test_cycle_visits_every_ordinary_token_once() -> None:
    tokens = permutation.expected([5], permutation.ORDINARY)
    assert sorted(tokens) == list(range(permutation.ORDINARY))
    assert tokens[-1] == 5


def test_transformers_loads_the_trunk_and_follows_the_cycle(kind: str, tmp_path: Path) -> None:
    """Names, shapes and norm conventions of the trunk, by a reader not ours; the head is what it leaves."""
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'mtptools[decoder]'")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'mtptools[dev]'")
    permutation.build(kind, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    trunk, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, config=getattr(config, "text_config", config), dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["mismatched_keys"]
    stem = f"model.layers.{config.get_text_config().num_hidden_layers}."
    assert all(name.startswith(("mtp.", stem)) for name in loading["unexpected_keys"])
    tokens = permutation.expected([5], STEPS)
    with torch.no_grad():
        greedy = trunk(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
    assert greedy[:-1] == tokens[1:]


@pytest.mark.parametrize(("kind", "release"), RELEASES.items())
def test_head_has_the_names_of_a_release(kind: str, release: str) -> None:
    """The names somebody else shipped, layer and expert numbers aside."""

    def plain(names: Iterable[str]) -> set[str]:
        found = (re.sub(r"(layers|experts)\.\d+", r"\1.N", name) for name in names)
        return {name for name in found if not name.endswith(("_scale", "_scale_inv"))}

    stem = f"model.layers.{permutation.config(kind).get('num_hidden_layers')}."
    ours = [name for name in permutation.tensors(kind) if name.startswith(("mtp.", stem))]
    assert plain(ours) == plain(load(release).head)
