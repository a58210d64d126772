"""Qwen3-Next: the layers of Qwen3.5 MoE before their projections were taken apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families import qwen35, qwen35moe
from mtptools.families.blocks import gated_attention, matrix, norm, qwen_moe, sandwich
from mtptools.families.qwen35 import HEAD, NORMS, TRUNK
from mtptools.families.spec import Field, Role, Source

__all__ = ["FAMILY"]

AT: Final = f"{TRUNK}linear_attn."
KEYS: Final = "linear_k_heads*linear_k_head_dim"
VALUES: Final = "linear_v_heads*linear_v_head_dim"
CONV: Final = f"2*{KEYS}+{VALUES}"

# GGUF takes in_proj_qkvz apart into attn_qkv and attn_gate, interleaved by key head in HF; older files keep ssm_in.
LINEAR: Final = (
    Role("ssm_in.weight", (f"{CONV}+{VALUES}", "hidden_size"), (Source(f"{AT}in_proj_qkvz.weight"),), required=False),
    matrix("attn_qkv.weight", (CONV, "hidden_size"), required=False),
    matrix("attn_gate.weight", (VALUES, "hidden_size"), required=False),
    matrix("ssm_ba.weight", ("2*linear_v_heads", "hidden_size"), f"{AT}in_proj_ba.weight"),
    matrix("ssm_conv1d.weight", (CONV, "conv_kernel"), f"{AT}conv1d.weight", kind="vector"),
    matrix("ssm_dt.bias", ("linear_v_heads",), f"{AT}dt_bias", kind="vector"),
    Role("ssm_a", ("linear_v_heads",), (Source(f"{AT}A_log"),), "vector", {"hf": "neg_exp"}),
    norm("ssm_norm.weight", ("linear_v_head_dim",), f"{AT}norm.weight"),
    matrix("ssm_out.weight", ("hidden_size", VALUES), f"{AT}out_proj.weight"),
)

FAMILY: Final = replace(
    qwen35moe.FAMILY,
    name="qwen3next",
    title="Qwen3-Next",
    gguf_arch="qwen3next",
    hf_types=("qwen3_next",),
    hf_flat="",
    hf_prefixes=("model.",),
    hf_ignored=(),
    hf_depth=("num_nextn_predict_layers",),
    depth_stated=False,
    mlx="breaks",
    gguf_pre="qwen2",
    expected={"hidden_act": "silu"},
    fields={
        **qwen35moe.FAMILY.fields,
        "intermediate_size": Field(("intermediate_size",), ("feed_forward_length",), 0),
    },
    wiring=replace(
        qwen35.WIRING,
        evidence="vLLM 0.33 qwen3_next_mtp, llama.cpp qwen3next.cpp graph; as Qwen3.5",
    ),
    trunk={
        "all": qwen35.GLOBAL,
        "linear": (*sandwich(TRUNK, NORMS), *LINEAR, *qwen_moe(TRUNK, single=True)),
        "full": (*sandwich(TRUNK, NORMS), *gated_attention(TRUNK, NORMS), *qwen_moe(TRUNK, single=True)),
    },
    head=(*sandwich(HEAD, NORMS), *gated_attention(HEAD, NORMS), *qwen_moe(HEAD, single=True), *qwen35.FUSION),
)
