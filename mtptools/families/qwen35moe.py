"""Qwen3.5 and 3.6 mixture of experts: the dense family with routed experts and one gated shared expert."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families import qwen35
from mtptools.families.blocks import deltanet, gated_attention, qwen_moe, sandwich
from mtptools.families.qwen35 import HEAD, NORMS, TRUNK
from mtptools.families.spec import Field

__all__ = ["FAMILY"]

FAMILY: Final = replace(
    qwen35.FAMILY,
    name="qwen35moe",
    title="Qwen3.5 / 3.6 MoE",
    gguf_arch="qwen35moe",
    hf_flat="qwen3_5_moe_text",
    hf_types=("qwen3_5_moe", "qwen3_5_moe_text"),
    fields={
        **qwen35.FIELDS,
        "n_experts": Field(("num_experts",), ("expert_count",)),
        "n_experts_used": Field(("num_experts_per_tok",), ("expert_used_count",)),
        "moe_intermediate_size": Field(("moe_intermediate_size",), ("expert_feed_forward_length",)),
        "shared_expert_intermediate_size": Field(
            ("shared_expert_intermediate_size",), ("expert_shared_feed_forward_length",)
        ),
    },
    trunk={
        "all": qwen35.GLOBAL,
        "linear": (*sandwich(TRUNK, NORMS), *deltanet(TRUNK), *qwen_moe(TRUNK)),
        "full": (*sandwich(TRUNK, NORMS), *gated_attention(TRUNK, NORMS), *qwen_moe(TRUNK)),
    },
    head=(*sandwich(HEAD, NORMS), *gated_attention(HEAD, NORMS), *qwen_moe(HEAD), *qwen35.FUSION),
)
