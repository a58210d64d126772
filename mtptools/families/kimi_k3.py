"""Kimi-K3: gated latent attention, experts behind a narrower latent space, packed FP4 in the release."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import (
    globals_of,
    matrix,
    mla,
    norm,
    numbered_experts,
    sandwich,
    shared_expert,
    v3_fusion,
)
from mtptools.families.fields import MLA, SHARED_EXPERTS
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"
SPARSE: Final = "~block_sparse_moe."
WIDTH: Final = "expert_hidden_size"
LATENT: Final = "moe_latent_size"

FAMILY: Final = Family(
    name="kimi_k3",
    title="Kimi-K3",
    gguf_arch="",
    gguf_head=False,
    hf_types=("kimi_k3", "kimi_linear"),
    hf_prefixes=("language_model.model.", "model."),
    hf_ignored=("vision_tower.", "mm_projector."),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    fields={
        **MLA,
        **SHARED_EXPERTS,
        "n_experts_used": Field(("num_experts_per_token", "num_experts_per_tok"), (), 0),
        "n_shared_experts": Field(("num_shared_experts", "n_shared_experts"), (), 0),
        LATENT: Field(("routed_expert_hidden_size",), (), 0),
        WIDTH: Field(("routed_expert_hidden_size", "hidden_size"), ()),
    },
    mlx="drops",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="pre",
        mask_first=True,
        evidence="vLLM 0.33 kimi_k3 alone (AttnRes off in the head); whether a release ships the head is not known. "
        "llama.cpp has the trunk without a head",
    ),
    trunk={"all": globals_of(outputs=("language_model.lm_head.weight", "lm_head.weight"))},
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *mla("~"),
        matrix("attn_gate.weight", ("n_heads*v_head_dim", H), "~self_attn.g_proj.weight", required=False),
        matrix("ffn_gate_inp.weight", ("n_experts", H), f"{SPARSE}gate.weight", kind="router"),
        Role(
            "exp_probs_b.bias", ("n_experts",), (Source(f"{SPARSE}gate.e_score_correction_bias"),), "vector", f32=True
        ),
        matrix("ffn_routed_down.weight", (WIDTH, H), f"{SPARSE}routed_expert_down_proj.weight", when=LATENT),
        norm("ffn_routed_norm.weight", (WIDTH,), f"{SPARSE}routed_expert_norm.weight", required=False, when=LATENT),
        matrix("ffn_routed_up.weight", (H, WIDTH), f"{SPARSE}routed_expert_up_proj.weight", when=LATENT),
        *numbered_experts(SPARSE, WIDTH),
        *shared_expert(f"{SPARSE}shared_experts.", "n_shared_experts*moe_intermediate_size"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
