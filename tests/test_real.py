"""Real releases by their names and shapes, as sparse files: whole files resolve, and what people graft is planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import releases
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.head import find_head
from mtptools.ops.graft import graft
from mtptools.ops.validate import validate

# Of files of which only the header is real: all values are zero, and there is no tokenizer.
BY_CONSTRUCTION = {"tokenizer-missing", "head-values", "trunk-norms", "index-size"}


@pytest.fixture
def hf(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(releases.write_folder("qwen3.6-35b-a3b", tmp_path / "Qwen3.6-35B-A3B"))


def gguf(key: str, tmp_path: Path) -> Checkpoint:
    return open_checkpoint(releases.write_gguf(key, tmp_path / f"{key}-Q4_K.gguf"))


def test_whole_dense_release(tmp_path: Path) -> None:
    """Qwen3.5-0.8B-Base: 488 tensors, nothing unknown, nothing missing, every shape as the config says."""
    ckpt = open_checkpoint(releases.write_folder("qwen3.5-0.8b-base", tmp_path / "m"))
    assert len(ckpt) == 488
    assert sum(tensor.n_values for tensor in ckpt.values()) == 873_438_784
    assert {f.check for f in validate(ckpt).findings} <= BY_CONSTRUCTION


def test_whole_gguf_with_a_head(tmp_path: Path) -> None:
    """GLM-4.5-Air in Q4_K: every tensor of the trunk and of the head has its role."""
    ckpt = gguf("glm-4.5-air", tmp_path)
    assert {f.check for f in validate(ckpt).findings} <= BY_CONSTRUCTION
    head = find_head(ckpt)
    assert head is not None
    assert (head.block, head.missing, head.unknown) == (46, (), ())


def test_head_of_a_fused_release(hf: Checkpoint) -> None:
    head = find_head(hf)
    assert head is not None
    assert (head.missing, head.unknown, len(head.names)) == ((), (), 19)
    assert head.roles["ffn_gate_exps.weight"].tensor.shape == (256, 512, 2048)
    assert len(head.roles) == 20


def test_headless_quant_people_graft_onto(hf: Checkpoint, tmp_path: Path) -> None:
    """Qwen3.6-35B-A3B in Q4_K without a head: 20 GB, all of it a hole."""
    trunk = gguf("qwen3.6-35b-a3b", tmp_path)
    assert {f.check for f in validate(trunk).findings} <= BY_CONSTRUCTION
    plan = graft(trunk, hf, "out.gguf", allow=("head-values",))
    head = {entry.name: entry for entry in plan.entries if entry.head}
    assert len(head) == 20
    assert head["blk.40.nextn.eh_proj.weight"].codec == "Q8_0"
    assert head["blk.40.ffn_gate_inp.weight"].codec == "F32"
    assert head["blk.40.ffn_up_exps.weight"].source.shape == (256, 512, 2048)
    assert {c.key: c.after for c in plan.changes} == {"qwen35moe.block_count": 41, "qwen35moe.nextn_predict_layers": 1}
