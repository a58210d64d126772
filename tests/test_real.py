"""Names and shapes of real releases, as sparse files: all tensors resolve, none is left over, grafts are planned."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.gguf import Metadata, header_bytes, padded
from mtptools.containers.gguf_values import array_value, scalar_value, string_value
from mtptools.head import find_head
from mtptools.ops.graft import graft
from mtptools.ops.validate import validate
from mtptools.tensors import Blob, Tensor

REAL = Path(__file__).parents[2] / "shared" / "real"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="needs the shared folder of real configs and tensor lists")
SIZES = {"BF16": 2, "F32": 4}


def sparse_safetensors(path: Path, listed: dict[str, dict[str, Any]]) -> None:
    header, at = {}, 0
    for name, entry in listed.items():
        n = SIZES[entry["dtype"]]
        for size in entry["shape"]:
            n *= size
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


@pytest.fixture
def hf_moe(tmp_path: Path) -> Path:
    """The head of Qwen3.6-35B-A3B with the family's real config."""
    folder = tmp_path / "Qwen3.6-35B-A3B"
    folder.mkdir()
    config = (REAL / "configs" / "Qwen--Qwen3.5-35B-A3B_config.json").read_text()
    (folder / "config.json").write_text(config)
    listed = json.loads((REAL / "tensors" / "Qwen3.6-35B-A3B.mtp.json").read_text())
    sparse_safetensors(folder / "model.safetensors", listed)
    return folder


@pytest.fixture
def gguf_moe(tmp_path: Path) -> Path:
    """Qwen3.6-35B-A3B in Q4_K without a head: what people graft onto. 20 GB, all of it a hole."""
    tensors = []
    for line in (REAL / "tensors" / "Qwen3.6-35B-A3B.q4_K.gguf.map").read_text().splitlines():
        match = re.match(r"(\S+?):shape=\((.*?)\):dtype=(\w+):elements=\d+:bytes=(\d+)", line)
        assert match is not None
        ne = [int(n) for n in match[2].split(",") if n]
        codec = {name.lower(): name for name in CODECS}[match[3]]
        tensors.append(Tensor(match[1], tuple(reversed(ne)), codec, (Blob(Path(), 0, int(match[4])),)))
    text = json.loads((REAL / "configs" / "Qwen--Qwen3.5-35B-A3B_config.json").read_text())["text_config"]
    arch = "qwen35moe"
    counts = {
        "block_count": 40,
        "context_length": text["max_position_embeddings"],
        "embedding_length": text["hidden_size"],
        "attention.head_count": text["num_attention_heads"],
        "attention.head_count_kv": text["num_key_value_heads"],
        "attention.key_length": text["head_dim"],
        "expert_count": text["num_experts"],
        "expert_used_count": text["num_experts_per_tok"],
        "expert_feed_forward_length": text["moe_intermediate_size"],
        "expert_shared_feed_forward_length": text["shared_expert_intermediate_size"],
        "rope.dimension_count": 64,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 128,
        "ssm.group_count": 16,
        "ssm.time_step_rank": 32,
        "ssm.inner_size": 4096,
        "full_attention_interval": 4,
    }
    metadata = Metadata(
        {
            "general.architecture": string_value(arch),
            **{f"{arch}.{key}": scalar_value("u32", value) for key, value in counts.items()},
            f"{arch}.attention.layer_norm_rms_epsilon": scalar_value("f32", text["rms_norm_eps"]),
            f"{arch}.rope.freq_base": scalar_value("f32", text["rope_parameters"]["rope_theta"]),
            f"{arch}.rope.dimension_sections": array_value("i32", [11, 11, 10, 0]),
        }
    )
    path = tmp_path / "Qwen3.6-35B-A3B-Q4_K.gguf"
    header = header_bytes(metadata, tensors, 32)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(padded(t.nbytes, 32) for t in tensors))
    return path


def test_whole_dense_release(tmp_path: Path) -> None:
    """Qwen3.5-0.8B-Base: 488 tensors, nothing unknown, nothing missing, every shape as the config says."""
    config = json.loads((REAL / "configs" / "Qwen--Qwen3.5-27B_config.json").read_text())
    small = {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 6,
    }
    config["text_config"].update(small)
    config["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    listed = json.loads((REAL / "tensors" / "Qwen3.5-0.8B-Base.whole-file.json").read_text())
    sparse_safetensors(tmp_path / "model.safetensors", listed)
    ckpt = open_checkpoint(tmp_path)
    assert len(ckpt) == 488
    assert sum(tensor.n_values for tensor in ckpt.values()) == 873_438_784
    wrong = {f.check: f.what for f in validate(ckpt).findings}
    # All values are zero in a sparse file, and there is no tokenizer; everything else must hold.
    assert set(wrong) <= {"tokenizer-missing", "head-values"}, wrong


def test_head_of_a_fused_release(hf_moe: Path) -> None:
    head = find_head(open_checkpoint(hf_moe))
    assert head is not None
    assert (head.missing, head.unknown, len(head.names)) == ((), (), 19)
    assert head.roles["ffn_gate_exps.weight"].tensor.shape == (256, 512, 2048)
    assert len(head.roles) == 20


def test_headless_quant_people_graft_onto(hf_moe: Path, gguf_moe: Path) -> None:
    trunk = open_checkpoint(gguf_moe)
    assert {f.check for f in validate(trunk).findings} <= {"tokenizer-missing", "trunk-norms"}
    plan = graft(trunk, open_checkpoint(hf_moe), "out.gguf", allow=("head-values",))
    head = {entry.name: entry for entry in plan.entries if entry.head}
    assert len(head) == 20
    assert head["blk.40.nextn.eh_proj.weight"].codec == "Q8_0"
    assert head["blk.40.ffn_gate_inp.weight"].codec == "F32"
    assert head["blk.40.ffn_up_exps.weight"].source.shape == (256, 512, 2048)
    assert {c.key: c.after for c in plan.changes} == {"qwen35moe.block_count": 41, "qwen35moe.nextn_predict_layers": 1}


@pytest.mark.parametrize("name", ["Qwen--Qwen3.5-27B", "Qwen--Qwen3.5-35B-A3B"])
def test_real_configs(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((REAL / "configs" / f"{name}_config.json").read_text())
    sparse_safetensors(tmp_path / "model.safetensors", {"mtp.norm.weight": {"dtype": "BF16", "shape": [8]}})
    hparams = open_checkpoint(tmp_path).hparams
    assert hparams.depth == 1
    assert hparams.rope_dim == 64
    assert hparams.layer_types.count("full") * 4 == hparams.n_layers
    assert hparams.rope_theta == 1e7
