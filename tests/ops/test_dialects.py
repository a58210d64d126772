"""Faults that a reader of the code found, each kept out by a test: dialects, scales, several layers, damaged names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures import permutation, releases
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.containers.gguf_values import array_value
from mtptools.errors import ConventionError, CorruptError, UsageError
from mtptools.gguf_blocks import trunk_blocks
from mtptools.head import find_head, head_layers, head_names
from mtptools.ops.convert import convert_head
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.inspect import inspect
from mtptools.ops.lineage import lineage
from mtptools.ops.render import Style
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES

ALLOW = ("head-norms",)  # the norms of these models carry signs


def made(plan: Plan, path: Path) -> Checkpoint:
    write(plan, path)
    return open_checkpoint(path)


def built(kind: str, folder: Path, **options: Any) -> Checkpoint:
    permutation.build(kind, folder, dtype="BF16", **options)
    return open_checkpoint(folder)


def with_fp8(source: Path, out: Path, *, head_only: bool = True) -> Checkpoint:
    """Every matrix of the head in FP8 with a scale for each 128x128 block, declared so."""
    shutil.copytree(source, out)
    tensors, ckpt = load_file(out / "model.safetensors"), open_checkpoint(out)
    head = set(head_names(ckpt))
    for name, tensor in list(tensors.items()):
        plain = tensor.ndim == 2 and ("self_attn" in name or ".mlp." in name) and "gate.weight" not in name
        if not plain or (head_only and name not in head):
            continue
        rows, columns = tensor.shape
        grid = torch.rand(-(-rows // 128), -(-columns // 128)) * 0.01 + 0.001
        spread = grid.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]
        tensors[name] = (tensor.float() / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = grid
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    (out / "config.json").write_text(json.dumps(config))
    return open_checkpoint(out)


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v3") / "hf"
    built("deepseekv3", folder)
    return folder


def test_extract_keeps_the_dialect(hf: Path, tmp_path: Path) -> None:
    """A float MLX checkpoint is told by its header alone."""
    mlx = made(convert_head(open_checkpoint(hf), "m", "mlx", Style()), tmp_path / "m")
    sidecar = made(extract(mlx, "s", bare=True), tmp_path / "s")
    assert (mlx.dialect, sidecar.dialect) == ("mlx", "mlx")


def test_type_asked_for_leaves_no_scale_behind(deepseek: Path, tmp_path: Path) -> None:
    """--head-type of an FP8 head decodes it; it does not round the scales and keep the codes."""
    donor = with_fp8(deepseek, tmp_path / "donor")
    trunk = made(strip(with_fp8(deepseek, tmp_path / "full", head_only=False), "t"), tmp_path / "t")
    kept = graft(trunk, donor, "o", allow=ALLOW)
    scales = [entry for entry in kept.entries if entry.head and entry.name.endswith("_scale_inv")]
    assert scales
    assert all(entry.passes for entry in kept.entries if entry.head)
    asked = graft(trunk, donor, "o", head_type="BF16", allow=ALLOW)
    assert not [entry for entry in asked.entries if entry.head and entry.name.endswith("_scale_inv")]
    assert {entry.codec for entry in asked.entries if entry.head} <= {"BF16", "F32"}
    assert any(fact.startswith("not exact: codes and scales become BF16") for fact in asked.facts)


def test_fp8_head_on_a_float_trunk_is_decoded_and_said(deepseek: Path, tmp_path: Path) -> None:
    donor = with_fp8(deepseek, tmp_path / "donor")
    trunk = made(strip(open_checkpoint(deepseek), "t"), tmp_path / "t")
    plan = graft(trunk, donor, "o", allow=ALLOW)
    assert any("codes and scales become BF16" in fact for fact in plan.facts)
    out = made(plan, tmp_path / "o")
    assert all(line.verdict == "pass" for line in lineage(out, trunk, donor)), lineage(out, trunk, donor)


def test_norm_type_changes_norms_alone(deepseek: Path, tmp_path: Path) -> None:
    donor = with_fp8(deepseek, tmp_path / "donor")
    trunk = made(strip(with_fp8(deepseek, tmp_path / "full", head_only=False), "t"), tmp_path / "t")
    plan = graft(trunk, donor, "o", norm_type="F32", allow=ALLOW)
    changed = {entry.name for entry in plan.entries if entry.head and not entry.passes}
    assert changed
    assert all("norm" in name for name in changed)


def test_experts_as_they_are_stay_as_they_are(deepseek: Path, tmp_path: Path) -> None:
    trunk = made(strip(open_checkpoint(deepseek), "t"), tmp_path / "t")
    plan = graft(trunk, open_checkpoint(deepseek), "o", experts="single", allow=ALLOW)
    assert all(entry.passes for entry in plan.entries if entry.head)


def test_fused_bias_is_no_matrix(tmp_path: Path) -> None:
    release = built("glm4moe", tmp_path / "glm")
    full = made(convert_gguf(release, "f.gguf", outtype="F32"), tmp_path / "f.gguf")
    block = f"blk.{trunk_blocks(full)}."
    parts = [f"{block}attn_{x}.bias" for x in "qkv"]
    joined = np.concatenate([decode(full[name]).reshape(-1) for name in parts])
    fused = rewrite.gguf(
        tmp_path / "f.gguf", tmp_path / "q.gguf", drop=tuple(parts), add={f"{block}attn_qkv.bias": joined}
    )
    trunk = made(strip(full, "t.gguf"), tmp_path / "t.gguf")
    plan = graft(trunk, open_checkpoint(fused), "o.gguf", head_type="Q8_0", allow=ALLOW)
    assert next(e.codec for e in plan.entries if e.name.endswith("attn_qkv.bias")) == "F32"
    back = made(convert_head(open_checkpoint(fused), "b", "hf", Style.asked("BF16"), bare=True), tmp_path / "b")
    for name in head_names(release):
        if name.endswith("_proj.bias"):
            assert back[name].read() == release[name].read(), name


def test_fused_experts_and_kv_b_come_apart_in_hf(deepseek: Path, tmp_path: Path) -> None:
    """Older deepseek2 files keep kv_b whole; the loader takes gate_up in one. Both are what HF has."""
    release = open_checkpoint(deepseek)
    full = made(convert_gguf(release, "f.gguf", outtype="F32"), tmp_path / "f.gguf")
    block = f"blk.{trunk_blocks(full)}."
    gate, up = (full[f"{block}ffn_{x}_exps.weight"] for x in ("gate", "up"))
    both = np.concatenate([decode(one).reshape(one.shape) for one in (gate, up)], axis=1)
    name = next(name for name in head_names(release) if name.endswith("kv_b_proj.weight"))
    kv_b = decode(release[name])
    old = rewrite.gguf(
        tmp_path / "f.gguf",
        tmp_path / "old.gguf",
        drop=(gate.name, up.name, f"{block}attn_k_b.weight", f"{block}attn_v_b.weight"),
        add={f"{block}ffn_gate_up_exps.weight": both, f"{block}attn_kv_b.weight": kv_b},
    )
    back = made(convert_head(open_checkpoint(old), "b", "hf", Style.asked("BF16"), bare=True), tmp_path / "b")
    assert set(head_names(back)) == set(head_names(release))
    for name in head_names(release):
        assert back[name].read() == release[name].read(), name


def test_sidecar_of_a_quantized_mlx_model_has_its_scales(tmp_path: Path) -> None:
    """The embedding a runtime loads beside the head comes with its scales, or not at all."""
    hf = FIXTURES / "qwen35" / "hf"
    folder = tmp_path / "mlx"
    shutil.copytree(hf, folder)
    ckpt = open_checkpoint(hf)
    embedding = next(name for name in ckpt if name.endswith("embed_tokens.weight"))
    tensors = load_file(folder / "model.safetensors")
    rows, columns = tensors.pop(embedding).shape
    stem = embedding.removesuffix(".weight")
    tensors[embedding] = torch.zeros(rows, columns // 8, dtype=torch.uint32)
    for suffix in ("scales", "biases"):
        tensors[f"{stem}.{suffix}"] = torch.ones(rows, columns // 64, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    sidecar = made(extract(open_checkpoint(folder), "s"), tmp_path / "s")
    assert {embedding, f"{stem}.scales", f"{stem}.biases"} <= set(sidecar)


def test_head_of_other_sizes_is_not_converted(deepseek: Path, tmp_path: Path) -> None:
    """Half the heads in the config would cut kv_b in the wrong places, and every shape would still come out."""
    halved = rewrite.hf(
        deepseek, tmp_path / "m", config=lambda c: c.update(num_attention_heads=c["num_attention_heads"] // 2)
    )
    with pytest.raises(CorruptError, match=r"attn_q_b\.weight has shape"):
        convert_head(open_checkpoint(halved), "o.gguf", "gguf", Style())


def test_layers_beyond_the_declared_depth_are_taken_along(tmp_path: Path) -> None:
    """Declares one, holds three (MiMo-V2): none is lost without a word."""
    built("glm4moe", tmp_path / "glm", depth=3)
    one = rewrite.hf(tmp_path / "glm", tmp_path / "one", config=lambda c: c.update(num_nextn_predict_layers=1))
    donor = open_checkpoint(one)
    assert head_layers(donor) == (0, 1, 2)
    assert "head-depth" in {f.check for f in validate(donor).findings}
    trunk = made(strip(donor, "t"), tmp_path / "t")
    out = made(graft(trunk, donor, "o", allow=ALLOW), tmp_path / "o")
    assert out.hparams.depth == 3
    assert len(head_names(out)) == len(head_names(donor))


def test_several_layers_share_one_fusion(tmp_path: Path) -> None:
    """Qwen's names have one fusion for all layers; GGUF's blocks have one each, which must agree on the way back."""
    release = built("qwen35", tmp_path / "q", depth=2)
    there = made(convert_head(release, "m.gguf", "gguf", Style.asked(), bare=True), tmp_path / "m.gguf")
    back = made(convert_head(there, "b", "hf", Style.asked(norms="BF16"), bare=True), tmp_path / "b")
    assert {name: back[name].read() for name in head_names(back)} == {
        name: release[name].read() for name in head_names(release)
    }
    second = f"blk.{trunk_blocks(there) + 1}.nextn.eh_proj.weight"
    other = rewrite.gguf(tmp_path / "m.gguf", tmp_path / "other.gguf", edit={second: lambda rows: rows + 1})
    with pytest.raises(ConventionError, match="shared by all MTP layers"):
        convert_head(open_checkpoint(other), "o", "hf", Style(), bare=True)


def test_a_damaged_number_is_no_reason_to_count_to_it(hf: Path, full: Path, tmp_path: Path) -> None:
    shutil.copytree(hf, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    tensors["mtp.layers.987654321.self_attn.q_proj.weight"] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CorruptError, match="987654321"):
        head_layers(open_checkpoint(tmp_path / "m"))
    far = rewrite.gguf(full, tmp_path / "far.gguf", add={"blk.900000000.nextn.enorm.weight": np.zeros(4, np.float32)})
    with pytest.raises(CorruptError, match="900000000"):
        find_head(open_checkpoint(far))


def test_unreadable_roles_are_findings(hf: Path, tmp_path: Path) -> None:
    """One GPTQ matrix in the head: validate and inspect say so, and go on."""
    shutil.copytree(hf, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    del tensors["mtp.fc.weight"]
    tensors["mtp.fc.qweight"] = torch.zeros(64, 256, dtype=torch.int32)
    tensors["mtp.fc.qzeros"] = torch.zeros(4, 32, dtype=torch.int32)
    tensors["mtp.fc.scales"] = torch.zeros(4, 256, dtype=torch.float16)
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    ckpt = open_checkpoint(tmp_path / "m")
    finding = next(f for f in validate(ckpt).findings if f.check == "head-readable")
    assert "GPTQ" in finding.evidence
    roles = inspect(ckpt)["head"][0]["roles"]
    assert "GPTQ" in next(role["problem"] for role in roles if "problem" in role)


def test_every_layer_is_judged(tmp_path: Path) -> None:
    """Qwen3-Next never declares its depth: the second layer is there all the same."""
    built("qwen3next", tmp_path / "q", depth=2)
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    name = "mtp.layers.1.self_attn.o_proj.weight"
    tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, tmp_path / "q" / "model.safetensors", metadata={"format": "pt"})
    found = [f for f in validate(open_checkpoint(tmp_path / "q")).findings if f.check == "head-values"]
    assert [f.what.split()[0] for f in found] == ["attn_output.weight"]


def test_an_array_one_short_is_not_made_up(full: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(full)
    key = f"{ckpt.family.gguf_arch}.attention.head_count_kv"
    counts = [1] * ckpt.hparams.n_layers
    short = rewrite.gguf(full, tmp_path / "s.gguf", metadata={key: array_value("u32", counts)})
    with pytest.raises(CorruptError, match="head_count_kv"):
        extract(open_checkpoint(short), "o.gguf")


def test_types_that_safetensors_norms_cannot_have(hf: Path) -> None:
    for kind in ("Q8_0", "I8"):
        with pytest.raises(UsageError, match="--norm-type"):
            convert_head(open_checkpoint(hf), "o", "mlx", Style.asked(norms=kind))


def test_router_types_of_the_donor_stay(deepseek: Path, tmp_path: Path) -> None:
    """A float32 router beside BF16 matrices is copied, not rounded."""
    shutil.copytree(deepseek, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    name = next(
        n
        for n in tensors
        if n.endswith("mlp.gate.weight") and f"layers.{open_checkpoint(deepseek).hparams.n_layers}." in n
    )
    tensors[name] = tensors[name].float() + 1e-6
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    plan = convert_head(open_checkpoint(tmp_path / "m"), "o", "mlx", Style(), lossless=True)
    assert next(e.codec for e in plan.entries if e.names == (name,)) == "F32"


def test_sidecar_of_v4_with_its_embedding(tmp_path: Path) -> None:
    """A family whose trunk is not described has the roles its head shares with it."""
    releases.write_folder("deepseek-v4-flash", tmp_path / "v4")
    assert extract(open_checkpoint(tmp_path / "v4"), "o").entries


def test_config_of_a_head_from_gguf_is_the_families_own(tmp_path: Path) -> None:
    for kind, wanted in (("glm4moe", "glm4_moe"), ("deepseekv3", "deepseek_v3"), ("qwen35", "qwen3_5_text")):
        release = built(kind, tmp_path / kind)
        gguf = made(convert_head(release, f"{kind}.gguf", "gguf", Style()), tmp_path / f"{kind}.gguf")
        plan = convert_head(gguf, "o", "hf", Style())
        config = next(side.content for side in plan.side if side.name == "config.json")
        assert json.loads(config or b"")["model_type"] == wanted


def test_experts_in_two_float_types(deepseek: Path, tmp_path: Path) -> None:
    """One expert in F32 beside BF16 ones is a legitimate release: values are joined, none refused."""
    shutil.copytree(deepseek, tmp_path / "m")
    tensors = load_file(tmp_path / "m" / "model.safetensors")
    n = open_checkpoint(deepseek).hparams.n_layers
    name = f"model.layers.{n}.mlp.experts.1.gate_proj.weight"
    tensors[name] = tensors[name].float()
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    out = made(
        convert_head(open_checkpoint(tmp_path / "m"), "o.gguf", "gguf", Style.asked("F32"), bare=True),
        tmp_path / "o.gguf",
    )
    values = decode(out[f"blk.{n}.ffn_gate_exps.weight"]).reshape(out[f"blk.{n}.ffn_gate_exps.weight"].shape)
    assert np.array_equal(values[1], tensors[name].numpy())
