"""MiMo-V2-Flash, 2.5 and Pro: three dense heads, one after the other, with the attention of the sliding layers."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import dense_ffn, fusion, globals_of, matrix, norm, private
from mtptools.families.fields import COMMON, MOE
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"
AT: Final = "~self_attn."
Q: Final = "n_heads*head_dim"
K: Final = "n_kv_heads*head_dim"
V: Final = "n_kv_heads*v_head_dim"
QKV: Final = Source(f"{AT}q_proj.weight", "rows", (f"{AT}k_proj.weight", f"{AT}v_proj.weight"), (Q, K, V))
# MiMo-V2.5 and Pro: fused, and in FP8 cut by the rank it was trained on, scales too.
FUSED: Final = Source(f"{AT}qkv_proj.weight", "qkv_of_ranks", sizes=(Q, K, V))

FAMILY: Final = Family(
    name="mimo2",
    title="MiMo-V2-Flash / 2.5 / Pro",
    gguf_arch="mimo2",
    hf_types=("mimo_v2_flash", "mimo_v2"),
    hf_prefixes=("model.",),
    hf_ignored=("visual.", "audio_encoder.", "speech_embeddings."),
    hf_depth=("num_nextn_predict_layers",),
    depth_stated=False,
    hf_head="^mtp.layers.{d}.",
    per_layer={"attention.sliding_window_pattern": True},
    mlx="drops",
    # Sizes of sliding layers, which the head's are; GGUF states them per layer, and its largest count is theirs.
    fields={
        **COMMON,
        **MOE,
        "n_heads": Field(("swa_num_attention_heads", "num_attention_heads"), ("attention.head_count",)),
        "n_kv_heads": Field(("swa_num_key_value_heads", "num_key_value_heads"), ("attention.head_count_kv",)),
        "head_dim": Field(("swa_head_dim", "head_dim"), ("attention.key_length",)),
        "v_head_dim": Field(("swa_v_head_dim", "v_head_dim"), ("attention.value_length",)),
        "norm_eps": Field(
            ("layernorm_epsilon", "rms_norm_eps"), ("attention.layer_norm_rms_epsilon",), 1e-5, kind="real"
        ),
    },
    wiring=Wiring(
        concat="eh",
        tap="pre",
        recycle="pre",
        mask_first=False,
        evidence="order: vLLM 0.33 mimo_v2_mtp, llama.cpp mimo2.cpp. Tap and recycle: llama.cpp, which chains the "
        "three heads, and SGLang's multi-layer worker take both before the norm; vLLM, which runs the first head "
        "alone, and SGLang's single-layer worker take both after it. Three heads: llama.cpp conversion/mimo.py",
    ),
    trunk={"all": globals_of(tied=False)},
    head=(
        norm("attn_norm.weight", (H,), "~input_layernorm.weight"),
        norm("ffn_norm.weight", (H,), "~pre_mlp_layernorm.weight"),
        # One tensor, because llama.cpp's MTP graph insists on it though its loader takes three.
        Role("attn_qkv.weight", (f"{Q}+{K}+{V}", H), (QKV, FUSED)),
        matrix("attn_output.weight", (H, "n_heads*v_head_dim"), f"{AT}o_proj.weight"),
        matrix("attn_sinks.weight", ("n_heads",), f"{AT}attention_sink_bias", kind="vector", required=False),
        *dense_ffn("~"),
        *fusion(
            "~eh_proj.weight",
            "~enorm.weight",
            "~hnorm.weight",
            "~final_layernorm.weight",
            last_name="layer_output_norm.weight",
        ),
        *private(),
    ),
)
