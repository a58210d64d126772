"""Step-3.5-Flash and 3.7: three dense heads, each with an output matrix of its own; attention gated per head."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families.blocks import dense_ffn, fusion, globals_of, matrix, norm, private, sandwich
from mtptools.families.fields import COMMON, MOE
from mtptools.families.spec import Family, Field, Wiring

__all__ = ["FAMILY"]

NORMS: Final = "unit_offset"
H: Final = "hidden_size"
AT: Final = "~self_attn."
EMBED, OUTPUT = private("~embed_tokens.weight", "~transformer.shared_head.output.weight")
OTHER: Final = "attention_other_setting"

FAMILY: Final = Family(
    name="step35",
    title="Step-3.5-Flash / 3.7",
    gguf_arch="step35",
    hf_types=("step3p7", "step3p5"),
    hf_prefixes=("model.language_model.", "model."),
    hf_ignored=("vision_model.", "vit_large_projector.", "model.vision_model.", "model.multi_modal_projector."),
    hf_depth=("num_nextn_predict_layers", "num_mtp_layers"),
    hf_head="^layers.{n}.",
    mlx="drops",
    # rope_theta is a list with one entry per layer, and is not read.
    fields={
        **{name: field for name, field in COMMON.items() if name != "rope_theta"},
        # Left out of Step-3.7's config; what its class says.
        "norm_eps": replace(COMMON["norm_eps"], default=1e-5),
        "n_heads": Field((f"{OTHER}.num_attention_heads", "num_attention_heads"), ("attention.head_count",)),
        "n_kv_heads": Field(
            (f"{OTHER}.num_attention_groups", "num_attention_groups", "num_key_value_heads"),
            ("attention.head_count_kv",),
        ),
        "head_dim": Field(("head_dim",), ("attention.key_length",)),
        "n_experts": Field(("moe_num_experts", "num_experts"), ("expert_count",), 0),
        "n_experts_used": Field(("moe_top_k", "num_experts_per_tok"), ("expert_used_count",), 0),
        "moe_intermediate_size": MOE["moe_intermediate_size"],
    },
    wiring=Wiring(
        concat="eh",
        tap="pre",
        recycle="pre",
        mask_first=False,
        evidence="vLLM 0.33 step3p5_mtp (GemmaRMSNorm; norm in compute_logits; has_own_lm_head), SGLang 0.5.23 "
        "hidden_states_before_norm, llama.cpp step35.cpp (chained) and conversion/step3.py (+1 on every norm): they "
        "agree. transformers 5.23 uses the trunk's output matrix and cannot load shared_head",
    ),
    trunk={"all": globals_of(NORMS, tied=False)},
    head=(
        *sandwich("~", NORMS, second="ffn_norm.weight"),
        # Sliding layers have more heads than full ones, and which the head's are is not certain from the config.
        matrix("attn_q.weight", ("", H), f"{AT}q_proj.weight"),
        matrix("attn_k.weight", ("n_kv_heads*head_dim", H), f"{AT}k_proj.weight"),
        matrix("attn_v.weight", ("n_kv_heads*head_dim", H), f"{AT}v_proj.weight"),
        matrix("attn_output.weight", (H, ""), f"{AT}o_proj.weight"),
        norm("attn_q_norm.weight", ("head_dim",), f"{AT}q_norm.weight", NORMS, required=False),
        norm("attn_k_norm.weight", ("head_dim",), f"{AT}k_norm.weight", NORMS, required=False),
        matrix("attn_gate.weight", ("", H), f"{AT}g_proj.weight", required=False),
        *dense_ffn("~"),
        *fusion("~eh_proj.weight", "~enorm.weight", "~hnorm.weight", "~transformer.shared_head.norm.weight", NORMS),
        EMBED,
        # Not the trunk's: 99.9 % of its elements differ, so nothing stands in for it.
        replace(OUTPUT, required=True, borrows=None),
    ),
)
