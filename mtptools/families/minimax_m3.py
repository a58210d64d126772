"""MiniMax-M3: sparse grouped-query attention with an indexer, routed and shared experts, Gemma's norms."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import (
    attention,
    fusion,
    globals_of,
    matrix,
    norm,
    numbered_experts,
    private,
    sandwich,
    shared_expert,
)
from mtptools.families.fields import GQA, INDEXER, MOE
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["FAMILY"]

NORMS: Final = "unit_offset"
H: Final = "hidden_size"
LAYER: Final = "~transformer_layer."
AT: Final = f"{LAYER}self_attn."
SPARSE: Final = f"{LAYER}block_sparse_moe."
SHARED: Final = "shared_expert_intermediate_size"
SETTING: Final = "sparse_attention_config.sparse_"

FAMILY: Final = Family(
    name="minimax_m3",
    title="MiniMax-M3",
    gguf_arch="",
    gguf_head=False,
    hf_types=("minimax_m3_vl", "minimax_m3_vl_text", "minimax_m3_text", "minimax_m3"),
    hf_prefixes=("language_model.model.", "model.language_model.", "model."),
    hf_ignored=("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.", "model.vision_tower."),
    hf_depth=("num_mtp_modules",),
    hf_head="^mtp.layers.{d}.",
    expected={"use_gemma_norm": True},
    fields={
        **GQA,
        **MOE,
        # The experts' size is called as a dense layer's; a dense layer's has a name of its own.
        "moe_intermediate_size": Field(("intermediate_size",), ("expert_feed_forward_length",)),
        "intermediate_size": Field(("dense_intermediate_size",), ("feed_forward_length",), 0),
        SHARED: Field(("shared_intermediate_size", "intermediate_size"), ()),
        "index_n_heads": Field((f"{SETTING}num_index_heads", "index_n_heads"), INDEXER["index_n_heads"].gguf, 0),
        "index_head_dim": Field((f"{SETTING}index_dim", "index_head_dim"), INDEXER["index_head_dim"].gguf, 0),
    },
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="pre",
        mask_first=True,
        evidence="vLLM 0.33 minimax_m3 alone: no other runtime drafts with it. llama.cpp's converter drops the head",
    ),
    trunk={"all": globals_of(NORMS, ("language_model.lm_head.weight", "lm_head.weight"))},
    head=(
        *sandwich(LAYER, NORMS, second="ffn_norm.weight"),
        *attention(LAYER, norms=NORMS),
        matrix(
            "indexer.q_proj.weight", ("index_n_heads*index_head_dim", H), f"{AT}index_q_proj.weight", required=False
        ),
        matrix("indexer.k_proj.weight", ("index_head_dim", H), f"{AT}index_k_proj.weight", required=False),
        norm("indexer.q_norm.weight", ("index_head_dim",), f"{AT}index_q_norm.weight", NORMS, required=False),
        norm("indexer.k_norm.weight", ("index_head_dim",), f"{AT}index_k_norm.weight", NORMS, required=False),
        matrix("ffn_gate_inp.weight", ("n_experts", H), f"{SPARSE}gate.weight", kind="router"),
        Role("exp_probs_b.bias", ("n_experts",), (Source(f"{SPARSE}e_score_correction_bias"),), "vector", f32=True),
        *numbered_experts(SPARSE),
        *shared_expert(f"{SPARSE}shared_experts.", SHARED),
        *fusion("~eh_proj.weight", "~enorm.weight", "~hnorm.weight", "~final_layernorm.weight", NORMS),
        *private(),
    ),
)
