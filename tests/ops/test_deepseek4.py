"""DeepSeek-V4's head: FP4 experts and FP8 matrices with E8M0 scales, two projections, streams mixed down by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fixtures import releases
from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import CodecError, InputError
from mtptools.head import find_head, head_names
from mtptools.ops.convert import convert_head
from mtptools.ops.extract import extract
from mtptools.ops.render import Style
from mtptools.plan import Plan
from mtptools.writer import write

# Sizes small enough to fill with values; the release's own are checked as facts (tests/test_families.py).
SMALL = {
    "hidden_size": 256,
    "moe_intermediate_size": 128,
    "n_routed_experts": 4,
    "num_attention_heads": 4,
    "head_dim": 128,
    "q_lora_rank": 128,
    "o_lora_rank": 128,
    "o_groups": 2,
    "vocab_size": 64,
}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """mtp.0.* under the release's names and types, small, random codes and scales."""
    folder = tmp_path_factory.mktemp("v4")
    config = {**releases.load("deepseek-v4-flash").config, **SMALL}
    (folder / "config.json").write_text(json.dumps(config))
    h, m, e, heads, d = 256, 128, 4, 4, 128
    rng = torch.Generator().manual_seed(7)
    out: dict[str, torch.Tensor] = {}

    def fp8(name: str, rows: int, columns: int) -> None:
        values = torch.randn(rows, columns, generator=rng)
        out[f"mtp.0.{name}.weight"] = values.to(torch.float8_e4m3fn)
        grid = (-(-rows // 128), -(-columns // 128))
        out[f"mtp.0.{name}.scale"] = torch.randint(118, 124, grid, generator=rng, dtype=torch.uint8).view(
            torch.float8_e8m0fnu
        )

    for name, shape in {
        "e_proj": (h, h), "h_proj": (h, h), "attn.wq_a": (128, h), "attn.wq_b": (heads * d, 128), "attn.wkv": (d, h),
        "attn.wo_a": (2 * 128, heads * d // 2), "attn.wo_b": (h, 2 * 128), "ffn.shared_experts.w1": (m, h),
        "ffn.shared_experts.w2": (h, m), "ffn.shared_experts.w3": (m, h),
    }.items():  # fmt: skip
        fp8(name, *shape)
    for x in range(e):
        for w, (rows, columns) in {"w1": (m, h), "w2": (h, m), "w3": (m, h)}.items():
            stem = f"mtp.0.ffn.experts.{x}.{w}"
            out[f"{stem}.weight"] = torch.randint(-128, 128, (rows, columns // 2), generator=rng, dtype=torch.int8)
            scale = torch.randint(110, 124, (rows, columns // 32), generator=rng, dtype=torch.uint8)
            out[f"{stem}.scale"] = scale.view(torch.float8_e8m0fnu)
    for name, length in {
        "enorm": h, "hnorm": h, "norm": h, "attn_norm": h, "ffn_norm": h, "attn.q_norm": 128, "attn.kv_norm": d,
    }.items():  # fmt: skip
        out[f"mtp.0.{name}.weight"] = torch.rand(length, generator=rng).bfloat16() + 0.5
    out["mtp.0.ffn.gate.weight"] = torch.randn(e, h, generator=rng).bfloat16()
    for name, shape in {
        "attn.attn_sink": (heads,), "ffn.gate.bias": (e,), "hc_attn_fn": (24, 4 * h), "hc_attn_base": (24,),
        "hc_attn_scale": (3,), "hc_ffn_fn": (24, 4 * h), "hc_ffn_base": (24,), "hc_ffn_scale": (3,),
        "hc_head_fn": (4, 4 * h), "hc_head_base": (4,), "hc_head_scale": (1,),
    }.items():  # fmt: skip
        out[f"mtp.0.{name}"] = torch.randn(shape, generator=rng)
    save_file(out, folder / "model.safetensors", metadata={"format": "pt"})
    return open_checkpoint(folder)


def made(plan: Plan, path: Path) -> Checkpoint:
    write(plan, path)
    return open_checkpoint(path)


def test_every_tensor_has_a_role(head: Checkpoint) -> None:
    found = find_head(head)
    assert found is not None
    assert (found.missing, found.unknown) == ((), ())
    assert found.roles["nextn.eh_proj.weight"].tensor.shape == (256, 512)


def test_experts_are_repacked_without_loss(head: Checkpoint, tmp_path: Path) -> None:
    """MXFP4 decoded by gguf-py is codes times scales by torch; and the codes come back bit for bit."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    sidecar = made(convert_head(head, "v4.gguf", "gguf", Style(), bare=True), tmp_path / "v4.gguf")
    experts = sidecar["blk.43.ffn_gate_exps.weight"]
    assert (experts.codec, experts.shape) == ("MXFP4", (4, 128, 256))
    blocks = np.frombuffer(experts.read(), np.uint8)
    ours = dequantize(blocks, GGMLQuantizationType.MXFP4).reshape(experts.shape)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    for x in range(4):
        stem = f"mtp.0.ffn.experts.{x}.w1"
        codes = np.frombuffer(head[f"{stem}.weight"].read(), np.uint8).reshape(128, 128)
        scale = np.frombuffer(head[f"{stem}.scale"].read(), np.uint8).reshape(128, 8)
        values = np.stack([table[codes & 15], table[codes >> 4]], -1).reshape(128, 256)
        wanted = values * np.repeat(np.exp2(scale.astype(np.float32) - 127), 32, axis=1)
        assert np.array_equal(ours[x], wanted)
    back = made(convert_head(sidecar, "b", "hf", Style()), tmp_path / "b")
    for name in head_names(head):
        if ".experts." in name and "shared" not in name:
            assert back[name].codec == head[name].codec, name
            assert back[name].read() == head[name].read(), name


def test_projections_stand_side_by_side(head: Checkpoint, tmp_path: Path) -> None:
    """eh_proj = [e | h], each dequantized by torch; exact in BF16, because the scales are powers of two."""
    sidecar = made(convert_head(head, "v4.gguf", "gguf", Style(), bare=True), tmp_path / "v4.gguf")
    ours = decode(sidecar["blk.43.nextn.eh_proj.weight"])
    halves = []
    for name in ("e_proj", "h_proj"):
        codes = torch.frombuffer(bytearray(head[f"mtp.0.{name}.weight"].read()), dtype=torch.float8_e4m3fn)
        scale = torch.frombuffer(bytearray(head[f"mtp.0.{name}.scale"].read()), dtype=torch.float8_e8m0fnu)
        grid = scale.float().reshape(2, 2).repeat_interleave(128, 0).repeat_interleave(128, 1)
        halves.append((codes.float().reshape(256, 256) * grid).numpy())
    assert np.array_equal(ours, np.concatenate(halves, axis=1))


def test_streams_are_mixed_down_outside_of_the_block(head: Checkpoint, tmp_path: Path) -> None:
    sidecar = made(convert_head(head, "v4.gguf", "gguf", Style(), bare=True), tmp_path / "v4.gguf")
    assert sidecar["output_hc_fn.weight"].shape == (4, 1024)
    found = find_head(sidecar)
    assert found is not None
    assert (found.missing, found.unknown) == ((), ())


def test_what_is_lost_is_said(head: Checkpoint) -> None:
    plan = convert_head(head, "v4.gguf", "gguf", Style(), bare=True)
    assert any("codes and scales become BF16" in fact for fact in plan.facts)
    with pytest.raises(CodecError, match="--lossless"):
        convert_head(head, "v4.gguf", "gguf", Style(), bare=True, lossless=True)


def test_sidecar_keeps_codes_and_scales(head: Checkpoint, tmp_path: Path) -> None:
    out = made(extract(head, "o", bare=True), tmp_path / "o")
    assert {name: out[name].read() for name in out} == {name: head[name].read() for name in head}


def test_mlx_takes_it_as_it_is_released(head: Checkpoint, tmp_path: Path) -> None:
    """mlx-vlm reads FP4 codes as mxfp4 words and FP8 as mxfp8: the same bytes under another type."""
    there = made(convert_head(head, "m", "mlx", Style(), bare=True, lossless=True), tmp_path / "m")
    assert there.dialect == "mlx"
    assert {name: there[name].read() for name in there} == {name: head[name].read() for name in head}
    back = made(convert_head(there, "b", "hf", Style(), bare=True, lossless=True), tmp_path / "b")
    assert {name: back[name].read() for name in back} == {name: head[name].read() for name in head}


def test_dspark_is_refused(tmp_path: Path) -> None:
    releases.write_folder("deepseek-v4-flash-0731-dspark", tmp_path)
    with pytest.raises(InputError, match="DSpark"):
        extract(open_checkpoint(tmp_path), "o")
