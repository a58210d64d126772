"""validate: every check finds its fault, and only its fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.containers.gguf_values import array_value, scalar_value
from mtptools.head import head_names
from mtptools.ops.extract import extract
from mtptools.ops.validate import CHECKS, Result, validate
from mtptools.writer import write
from tests import rewrite


def found(path: Path) -> set[str]:
    return {finding.check for finding in validate(open_checkpoint(path)).findings}


@pytest.fixture
def gguf(full: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(**changes: Any) -> Path:
        return rewrite.gguf(full, tmp_path / "broken.gguf", **changes)

    return make


@pytest.fixture
def ckpt(full: Path) -> Checkpoint:
    return open_checkpoint(full)


def test_good_ones_pass(full: Path, hf: Path, trunk_q8: Path, trunk_q4: Path, tmp_path: Path) -> None:
    sidecar, bare = tmp_path / "s.gguf", tmp_path / "b.gguf"
    write(extract(open_checkpoint(full), "s.gguf"), sidecar)
    write(extract(open_checkpoint(full), "b.gguf", bare=True), bare)
    for path in (full, hf, trunk_q8, trunk_q4, sidecar, bare):
        assert found(path) == set(), path


def test_declared_and_missing(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    path = gguf(drop=head_names(ckpt))
    result = validate(open_checkpoint(path))
    assert {f.check for f in result.findings} == {"head-declared-missing"}
    assert "declared and missing" in result.findings[0].what
    assert "mtptools graft" in result.findings[0].fix


def test_undeclared(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    arch = ckpt.family.gguf_arch
    path = gguf(metadata={f"{arch}.nextn_predict_layers": scalar_value("u32", 0)})
    assert "head-undeclared" in found(path)


def test_block_count_without_the_head(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    arch, n = ckpt.family.gguf_arch, ckpt.hparams.n_layers
    path = gguf(metadata={f"{arch}.block_count": scalar_value("u32", n)})
    assert "block-count" in found(path)


def test_block_count_one_short_with_the_depth_right(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    """llama.cpp would take the last trunk block for the head."""
    arch, n = ckpt.family.gguf_arch, ckpt.hparams.n_layers
    path = gguf(metadata={f"{arch}.block_count": scalar_value("u32", n), f"{arch}.attention.recurrent_layers": None})
    found_there = [f for f in validate(open_checkpoint(path)).findings if f.check == "block-count"]
    assert any(f"the head stands at block {n}" in f.what for f in found_there)


def test_array_one_short(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    arch = ckpt.family.gguf_arch
    short = array_value("bool", [kind == "linear" for kind in ckpt.hparams.layer_types])
    assert found(gguf(metadata={f"{arch}.attention.recurrent_layers": short})) == {"per-layer-arrays"}


def test_missing_roles(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    head = next(name for name in ckpt if name.endswith("nextn.eh_proj.weight"))
    assert found(gguf(drop=(head,))) == {"tensor-missing"}
    assert found(gguf(drop=("blk.0.ssm_out.weight",))) == {"tensor-missing"}
    assert found(gguf(drop=("output_norm.weight",))) == {"tensor-missing"}


def test_unknown_tensors(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    last = ckpt.hparams.n_layers
    assert found(gguf(add={"e2t": np.zeros(4, np.float32)})) == {"tensor-unknown"}
    assert found(gguf(add={f"blk.{last}.nextn.extra.weight": np.ones(4, np.float32)})) == {"tensor-unknown"}


def test_shape_against_config(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    arch = ckpt.family.gguf_arch
    path = gguf(metadata={f"{arch}.attention.head_count": scalar_value("u32", ckpt.hparams.n_heads * 2)})
    result = validate(open_checkpoint(path))
    assert {f.check for f in result.findings} == {"tensor-shape"}
    assert any("attn_q.weight" in f.what for f in result.findings)


def head_norms(ckpt: Checkpoint) -> list[str]:
    return [name for name in head_names(ckpt) if "norm" in name]


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_head_norms_in_the_other_convention(shift: float, gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    path = gguf(edit={name: lambda rows: rows + shift for name in head_norms(ckpt)})
    result = validate(open_checkpoint(path))
    assert {f.check for f in result.findings} == {"head-norms"}
    assert ("without the +1" if shift < 0 else "added twice") in result.findings[0].what


def test_trunk_norms_in_the_other_convention(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    """Trunk and head are judged apart: a trunk without the +1 is named, and the right head is not blamed for it."""
    names = [n for n in ckpt if "norm" in n and "ssm" not in n and n not in head_norms(ckpt)]
    path = gguf(edit={name: lambda rows: rows - 1 for name in names})
    assert found(path) == {"trunk-norms"}
    twice = rewrite.gguf(path, path.with_name("t.gguf"), edit={name: lambda rows: rows + 2 for name in names})
    assert found(twice) == {"trunk-norms-high"}


@pytest.mark.parametrize("part", ["nextn.enorm", "nextn.hnorm", "attn_norm", "attn_q_norm"])
def test_one_head_norm_without_its_one(part: str, gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    """The naive graft forgets the fusion's norms alone: each norm is judged by itself."""
    name = next(name for name in head_norms(ckpt) if part in name)
    path = gguf(edit={name: lambda rows: rows - 1})
    result = validate(open_checkpoint(path))
    assert {f.check for f in result.findings} == {"head-norms"}
    assert part in result.findings[0].what


def test_hf_norms_with_the_one_baked_in(hf: Path, tmp_path: Path) -> None:
    """What a folder looks like that was converted back from MLX: w + 1 where w belongs."""
    import torch
    from safetensors.torch import load_file, save_file

    path = rewrite.hf(hf, tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if "norm" in name and "linear_attn" not in name:
            tensors[name] = tensor + torch.ones((), dtype=tensor.dtype)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert "trunk-norms-high" in found(path)


def test_lm_head_missing(hf: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = rewrite.hf(hf, tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    if tensors.pop("lm_head.weight", None) is None:
        config = json.loads((path / "config.json").read_text())
        config["tie_word_embeddings"] = False
        (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert found(path) == {"tensor-missing"}


def test_dead_and_damaged_values(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    name = next(name for name in ckpt if name.endswith("nextn.eh_proj.weight"))
    assert found(gguf(edit={name: lambda rows: rows * 0})) == {"head-values"}
    path = gguf(edit={name: lambda rows: np.where(np.arange(rows.shape[-1]) == 3, np.nan, rows)})
    assert found(path) == {"head-values"}


def test_order(gguf: Callable[..., Path], ckpt: Checkpoint, tmp_path: Path) -> None:
    """An info's offset moved past a gap: gguf-py reads it, llama.cpp refuses it."""
    path = gguf()
    data = bytearray(path.read_bytes())
    last = list(open_checkpoint(path).values())[-1]
    start = open_checkpoint(path).files[0].header
    offset = last.blobs[0].offset - start
    at = data.rindex(offset.to_bytes(8, "little"), 0, start)
    data[at : at + 8] = (offset + 32).to_bytes(8, "little")
    path.write_bytes(bytes(data) + bytes(64))
    assert found(path) == {"tensor-order"}


def edit_depth(value: object) -> Callable[[dict[str, Any]], None]:
    def edit(config: dict[str, Any]) -> None:
        tree = config.get("text_config", config)
        if value is ...:
            del tree["mtp_num_hidden_layers"]
        else:
            tree["mtp_num_hidden_layers"] = value

    return edit


@pytest.mark.parametrize("value", [0, None, ...])
def test_hf_weights_without_declaration(value: object, hf: Path, tmp_path: Path) -> None:
    assert found(rewrite.hf(hf, tmp_path / "m", config=edit_depth(value))) == {"head-undeclared"}


def test_hf_declares_two(hf: Path, tmp_path: Path) -> None:
    path = rewrite.hf(hf, tmp_path / "m", config=edit_depth(2))
    assert {"head-depth"} <= found(path)


QUANT: dict[str, dict[str, Any]] = {
    "compressed-tensors": {"ignore": ["lm_head"]},
    "fp8": {"modules_to_not_convert": ["lm_head"]},
    "modelopt": {"ignore": ["lm_head"]},
    "gptq": {"dynamic": {}},
    "awq": {"modules_to_not_convert": None},
    "quark": {"exclude": []},
}


@pytest.mark.parametrize("method", QUANT)
def test_quantization_config_must_cover_the_head(method: str, hf: Path, tmp_path: Path) -> None:
    """The head is float: a quantizing config that does not say so breaks loaders. graft says so for every method."""
    from mtptools.ops.extract import strip
    from mtptools.ops.graft import graft

    def quantized(config: dict[str, Any]) -> None:
        config["quantization_config"] = {"quant_method": method, **QUANT[method]}

    path = rewrite.hf(hf, tmp_path / "m", config=quantized)
    assert found(path) == {"quantization-config"}
    write(strip(open_checkpoint(path), "t"), tmp_path / "t")
    write(graft(open_checkpoint(tmp_path / "t"), open_checkpoint(hf), "o"), tmp_path / "o")
    assert found(tmp_path / "o") == set()
    kept = json.loads((tmp_path / "o" / "config.json").read_text())["quantization_config"]
    assert kept["quant_method"] == method


def test_modelopt_says_it_twice(hf: Path, tmp_path: Path) -> None:
    """config.json and hf_quant_config.json; vLLM reads the second where the first says nothing."""
    from mtptools.ops.extract import strip
    from mtptools.ops.graft import graft

    stated = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}}
    path = rewrite.hf(hf, tmp_path / "m")
    (path / "hf_quant_config.json").write_text(json.dumps(stated))
    write(strip(open_checkpoint(path), "t"), tmp_path / "t")
    write(graft(open_checkpoint(tmp_path / "t"), open_checkpoint(hf), "o"), tmp_path / "o")
    after = json.loads((tmp_path / "o" / "hf_quant_config.json").read_text())
    assert after["quantization"]["exclude_modules"] == ["lm_head", "mtp*"]
    write(extract(open_checkpoint(path), "s"), tmp_path / "s")
    assert not (tmp_path / "s" / "hf_quant_config.json").exists()


def test_unknown_quantization_method(hf: Path, tmp_path: Path) -> None:
    from mtptools.errors import IncompatibleError
    from mtptools.ops.extract import strip
    from mtptools.ops.graft import graft

    def quantized(config: dict[str, Any]) -> None:
        config["quantization_config"] = {"quant_method": "aqlm"}

    path = rewrite.hf(hf, tmp_path / "m", config=quantized)
    assert found(path) == {"quantization-method"}
    write(strip(open_checkpoint(path), "t"), tmp_path / "t")
    with pytest.raises(IncompatibleError, match="do not belong"):
        graft(open_checkpoint(tmp_path / "t"), open_checkpoint(hf), "o")
    assert graft(open_checkpoint(tmp_path / "t"), open_checkpoint(hf), "o", allow=("quantization-method",)).facts


def test_three_rope_sections(gguf: Callable[..., Path], ckpt: Checkpoint) -> None:
    key = f"{ckpt.family.gguf_arch}.rope.dimension_sections"
    assert found(gguf(metadata={key: array_value("i32", [3, 3, 2])})) == {"fixed-arrays"}


def test_tensor_outside_of_the_index(hf: Path, tmp_path: Path) -> None:
    path = rewrite.hf(hf, tmp_path / "m")
    names = list(open_checkpoint(path))
    index = {"metadata": {}, "weight_map": dict.fromkeys(names[1:], "model.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert found(path) == {"index"}


def test_head_in_a_file_that_no_loader_reads(hf: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = rewrite.hf(hf, tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    head = {name: tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    save_file(head, path / "mtp.safetensors", metadata={"format": "pt"})
    result = validate(open_checkpoint(path))
    assert [f.check for f in result.findings] == ["head-declared-missing"]
    assert "mtp.safetensors" in result.findings[0].evidence


@pytest.mark.parametrize(
    ("method", "stated"),
    [
        ("compressed-tensors", {"ignore": ["re:^mtp.*"]}),
        ("compressed-tensors", {"ignore": ["re:.*mtp.*", "lm_head"]}),
        ("gptq", {"dynamic": {"-:.*mtp.*": {}}}),
        ("modelopt", {"ignore": ["mtp*"]}),
        ("modelopt", {"exclude_modules": ["*mtp*"]}),
    ],
)
def test_covered_in_the_ways_releases_do(method: str, stated: dict[str, Any], hf: Path, tmp_path: Path) -> None:
    def quantized(config: dict[str, Any]) -> None:
        config["quantization_config"] = {"quant_method": method, **stated}

    assert found(rewrite.hf(hf, tmp_path / "m", config=quantized)) == set()


def test_a_list_that_some_runtime_works_around(hf: Path, tmp_path: Path) -> None:
    """The list of a real NVFP4 release lacks mtp.fc, which loaders take as float for this method."""

    def quantized(config: dict[str, Any]) -> None:
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp.layers.0*"]}

    assert found(rewrite.hf(hf, tmp_path / "m", config=quantized)) == {"quantization-loose"}


def test_layers_listed_without_the_fusion(hf: Path, tmp_path: Path) -> None:
    """mtp.fc is the module most often forgotten."""

    def quantized(config: dict[str, Any]) -> None:
        config["quantization_config"] = {"quant_method": "compressed-tensors", "ignore": ["re:^mtp.layers.*"]}

    assert found(rewrite.hf(hf, tmp_path / "m", config=quantized)) == {"quantization-config"}


def test_tokenizer(hf: Path, tmp_path: Path) -> None:
    path = rewrite.hf(hf, tmp_path / "m")
    tree = json.loads((path / "tokenizer.json").read_text())
    tree["added_tokens"] += [{"id": 100_000 + n, "content": f"<x{n}>"} for n in range(4000)]
    (path / "tokenizer.json").write_text(json.dumps(tree))
    assert found(path) == {"tokenizer-size"}
    (path / "tokenizer.json").unlink()
    result = validate(open_checkpoint(path))
    assert {f.check for f in result.findings} == {"tokenizer-missing"}
    assert result.ok  # a warning


def test_foreign_tokenizer_after_a_graft(full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    from mtptools.ops.graft import graft

    out = tmp_path / "o.gguf"
    write(graft(open_checkpoint(trunk_q8), open_checkpoint(full), out.name), out)
    assert found(out) == set()
    tokens = list(open_checkpoint(out).metadata["tokenizer.ggml.tokens"])
    tokens[7], tokens[8] = tokens[8], tokens[7]
    changes = {"tokenizer.ggml.tokens": array_value("string", tokens)}
    assert found(rewrite.gguf(out, tmp_path / "f.gguf", metadata=changes)) == {"tokenizer-hash"}


def test_both_expert_layouts(hf_per_expert: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    experts = open_checkpoint(hf_per_expert).hparams.n_experts
    path = hf_per_expert / "model.safetensors"
    tensors = load_file(path)
    tensors["mtp.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(experts, 512, 256, dtype=torch.bfloat16)
    save_file(tensors, path, metadata={"format": "pt"})
    assert "expert-layout" in found(hf_per_expert)


def test_ids_are_stable_and_documented() -> None:
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    docs = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
    assert all(f"`{check.id}`" in docs and check.asks in docs for check in CHECKS)


def test_result_json(full: Path) -> None:
    result = validate(open_checkpoint(full))
    assert isinstance(result, Result)
    assert json.loads(json.dumps(result.to_json()))["ok"] is True
