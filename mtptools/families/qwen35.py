"""Qwen3.5, 3.6 and 3.8, dense: Gated DeltaNet with gated attention every fourth layer, one MTP layer."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import deltanet, dense_ffn, gated_attention, globals_of, qwen_fusion, sandwich
from mtptools.families.spec import Family, Field, Wiring

__all__ = ["FAMILY", "FIELDS", "FUSION", "GLOBAL", "WIRING"]

NORMS: Final = "unit_offset"

FIELDS: Final = {
    "hidden_size": Field(("hidden_size",), ("embedding_length",)),
    "n_heads": Field(("num_attention_heads",), ("attention.head_count",)),
    "n_kv_heads": Field(("num_key_value_heads",), ("attention.head_count_kv",)),
    "head_dim": Field(("head_dim",), ("attention.key_length",)),
    "intermediate_size": Field(("intermediate_size",), ("feed_forward_length",), 0),
    "norm_eps": Field(("rms_norm_eps",), ("attention.layer_norm_rms_epsilon",), kind="real"),
    "rope_theta": Field(("rope_parameters.rope_theta", "rope_theta"), ("rope.freq_base",), kind="real"),
    "partial_rotary": Field(("rope_parameters.partial_rotary_factor", "partial_rotary_factor"), (), 0.25, kind="real"),
    "rope_dim": Field((), ("rope.dimension_count",), 0),
    "context_length": Field(("max_position_embeddings",), ("context_length",)),
    "conv_kernel": Field(("linear_conv_kernel_dim",), ("ssm.conv_kernel",)),
    "linear_k_heads": Field(("linear_num_key_heads",), ("ssm.group_count",)),
    "linear_v_heads": Field(("linear_num_value_heads",), ("ssm.time_step_rank",)),
    "linear_k_head_dim": Field(("linear_key_head_dim",), ("ssm.state_size",)),
    "linear_v_head_dim": Field(("linear_value_head_dim",), (), 0),
    "ssm_inner": Field((), ("ssm.inner_size",), 0),
    "layer_types": Field(("layer_types",), ("attention.recurrent_layers",), None, kind="layers"),
    "full_attention_interval": Field(("full_attention_interval",), ("full_attention_interval",), 4),
}

GLOBAL: Final = globals_of(NORMS, ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight"))

FUSION: Final = qwen_fusion(NORMS)

WIRING: Final = Wiring(
    concat="eh",
    tap="post",
    recycle="post",
    mask_first=False,
    evidence="vLLM 0.33 qwen3_5_mtp, llama.cpp qwen35.cpp graph and llama.cpp#24025; LightLLM#1402 measured accept "
    "length 1.80 (pre) against 2.74 (post)",
)

TRUNK: Final = "^layers.{n}."
HEAD: Final = "~layers.{d}."

FAMILY: Final = Family(
    name="qwen35",
    title="Qwen3.5 / 3.6 / 3.8 dense",
    gguf_arch="qwen35",
    hf_flat="qwen3_5_text",
    hf_types=("qwen3_5", "qwen3_5_text"),
    hf_prefixes=("model.language_model.", "language_model.model.", "model."),
    hf_ignored=("model.visual.", "visual."),
    hf_depth=("mtp_num_hidden_layers",),
    hf_head="mtp.",
    expected={"hidden_act": "silu", "attn_output_gate": True, "mtp_use_dedicated_embeddings": False},
    fields=FIELDS,
    layers="hybrid",
    mlx="drafts",
    gguf_pre="qwen35",
    wiring=WIRING,
    trunk={
        "all": GLOBAL,
        "linear": (*sandwich(TRUNK, NORMS), *deltanet(TRUNK), *dense_ffn(TRUNK)),
        "full": (*sandwich(TRUNK, NORMS), *gated_attention(TRUNK, NORMS), *dense_ffn(TRUNK)),
    },
    head=(*sandwich(HEAD, NORMS), *gated_attention(HEAD, NORMS), *dense_ffn(HEAD), *FUSION),
)
