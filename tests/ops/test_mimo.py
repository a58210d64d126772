"""MiMo-V2.5's fused q, k and v: in FP8 cut by tensor-parallel rank, rows and scales; only the scales tell."""

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
from mtptools.errors import CorruptError
from mtptools.head import find_head
from mtptools.ops.convert import convert_head
from mtptools.ops.extract import extract
from mtptools.ops.render import Style
from mtptools.writer import write

HIDDEN, HEADS, KV, DIM, VALUE, FFN = 256, 16, 8, 48, 32, 64
Q, K, V = HEADS * DIM, KV * DIM, KV * VALUE
SMALL = {
    "hidden_size": HIDDEN, "vocab_size": 64, "intermediate_size": FFN, "n_routed_experts": 4,
    "num_attention_heads": HEADS, "swa_num_attention_heads": HEADS, "swa_num_key_value_heads": KV,
    "swa_head_dim": DIM, "swa_v_head_dim": VALUE,
}  # fmt: skip


def checkpoint(folder: Path, ranks: int) -> tuple[Checkpoint, np.ndarray]:
    """One head whose qkv_proj is cut into `ranks`, and the matrix [q; k; v] it was cut from, as torch multiplies it."""
    rng = torch.Generator().manual_seed(ranks)
    total = Q + K + V
    each, grid = total // ranks, -(-(total // ranks) // 128)
    codes = torch.randn(total, HIDDEN, generator=rng).to(torch.float8_e4m3fn)
    scale = torch.rand(ranks * grid, HIDDEN // 128, generator=rng) + 0.5
    whole = []
    for rank in range(ranks):
        rows = codes[rank * each : (rank + 1) * each].float()
        own = scale[rank * grid : (rank + 1) * grid]
        whole.append(rows * own.repeat_interleave(128, 0)[:each].repeat_interleave(128, 1))
    parts = [torch.split(rows, [Q // ranks, K // ranks, V // ranks]) for rows in whole]
    wanted = torch.cat([part[which] for which in range(3) for part in parts]).numpy()
    stem = "model.mtp.layers.0."
    tensors = {f"{stem}self_attn.qkv_proj.weight": codes, f"{stem}self_attn.qkv_proj.weight_scale_inv": scale}
    for name, shape in {
        "eh_proj": (HIDDEN, 2 * HIDDEN), "enorm": (HIDDEN,), "hnorm": (HIDDEN,), "final_layernorm": (HIDDEN,),
        "input_layernorm": (HIDDEN,), "pre_mlp_layernorm": (HIDDEN,), "self_attn.o_proj": (HIDDEN, HEADS * VALUE),
        "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN), "mlp.down_proj": (HIDDEN, FFN),
    }.items():  # fmt: skip
        tensors[f"{stem}{name}.weight"] = torch.randn(shape, generator=rng).bfloat16()
    tensors[f"{stem}self_attn.attention_sink_bias"] = torch.zeros(HEADS).bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**releases.load("mimo-v2-flash").config, **SMALL, "model_type": "mimo_v2"}
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(folder), wanted


@pytest.mark.parametrize("ranks", [8, 4, 1])
def test_rows_of_ranks_are_put_together(ranks: int, tmp_path: Path) -> None:
    ckpt, wanted = checkpoint(tmp_path / "m", ranks)
    head = find_head(ckpt)
    assert head is not None
    assert (head.missing, head.unknown) == ((), ())
    assert np.array_equal(decode(head.roles["attn_qkv.weight"].tensor), wanted)
    write(convert_head(ckpt, "o.gguf", "gguf", Style.asked("F32"), bare=True), tmp_path / "o.gguf")
    assert np.array_equal(decode(open_checkpoint(tmp_path / "o.gguf")["blk.48.attn_qkv.weight"]), wanted)


def test_stored_as_it_is_within_hf(tmp_path: Path) -> None:
    ckpt, _ = checkpoint(tmp_path / "m", 4)
    write(extract(ckpt, "o", bare=True), tmp_path / "o")
    out = open_checkpoint(tmp_path / "o")
    assert {name: out[name].read() for name in out} == {name: ckpt[name].read() for name in ckpt}


def test_scales_that_fit_no_cut_are_refused(tmp_path: Path) -> None:
    ckpt, _ = checkpoint(tmp_path / "m", 4)
    from safetensors.torch import load_file

    tensors = load_file(tmp_path / "m" / "model.safetensors")
    name = "model.mtp.layers.0.self_attn.qkv_proj.weight_scale_inv"
    tensors[name] = tensors[name][:-2].contiguous()
    save_file(tensors, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    head = find_head(open_checkpoint(tmp_path / "m"))
    assert head is not None
    with pytest.raises(CorruptError, match="rows of scales"):
        head.roles["attn_qkv.weight"].tensor  # noqa: B018
    assert ckpt.family.name == "mimo2"
