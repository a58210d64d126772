"""Hyperparameters that many families spell the same way."""

from __future__ import annotations

from typing import Final

from mtptools.families.spec import Field

__all__ = ["COMMON", "GENERIC", "GQA", "INDEXER", "MLA", "MOE", "SHARED_EXPERTS"]

COMMON: Final = {
    "hidden_size": Field(("hidden_size",), ("embedding_length",)),
    "n_heads": Field(("num_attention_heads",), ("attention.head_count",)),
    "n_kv_heads": Field(("num_key_value_heads",), ("attention.head_count_kv",)),
    "intermediate_size": Field(("intermediate_size",), ("feed_forward_length",), 0),
    "norm_eps": Field(("rms_norm_eps",), ("attention.layer_norm_rms_epsilon",), kind="real"),
    "rope_theta": Field(("rope_parameters.rope_theta", "rope_theta"), ("rope.freq_base",), 10000.0, kind="real"),
    "context_length": Field(("max_position_embeddings",), ("context_length",), 0),
}

GQA: Final = {
    **COMMON,
    "head_dim": Field(("head_dim",), ("attention.key_length",), 0),
    "partial_rotary": Field(("rope_parameters.partial_rotary_factor", "partial_rotary_factor"), (), 1.0, kind="real"),
    "rope_dim": Field((), ("rope.dimension_count",), 0),
}

# GGUF states the sizes of multi-head latent attention twice: as it is run (one key-value head of rank + rope), and
# with `_mla` as it is meant. The number of key-value heads means nothing here: HF repeats the heads', GGUF says 1.
MLA: Final = {
    **{name: field for name, field in COMMON.items() if name != "n_kv_heads"},
    "q_lora_rank": Field(("q_lora_rank",), ("attention.q_lora_rank",), 0),
    "kv_lora_rank": Field(("kv_lora_rank",), ("attention.kv_lora_rank",)),
    "qk_nope_head_dim": Field(("qk_nope_head_dim",), ("attention.key_length_mla - rope.dimension_count",)),
    "qk_rope_head_dim": Field(("qk_rope_head_dim",), ("rope.dimension_count",)),
    "v_head_dim": Field(("v_head_dim",), ("attention.value_length_mla",)),
}

MOE: Final = {
    "n_experts": Field(("n_routed_experts", "num_experts", "num_local_experts"), ("expert_count",)),
    "n_experts_used": Field(("num_experts_per_tok",), ("expert_used_count",)),
    "moe_intermediate_size": Field(("moe_intermediate_size",), ("expert_feed_forward_length",)),
}

# Shared experts counted in units of a routed one, and dense layers first (DeepSeek-V2 and its kin).
SHARED_EXPERTS: Final = {
    **MOE,
    "n_shared_experts": Field(("n_shared_experts",), ("expert_shared_count",), 0),
    "first_dense": Field(("first_k_dense_replace",), ("leading_dense_block_count",), 0),
}

# Sparse attention: the indexer that picks positions.
INDEXER: Final = {
    "index_n_heads": Field(("index_n_heads",), ("attention.indexer.head_count",)),
    "index_head_dim": Field(("index_head_dim",), ("attention.indexer.key_length",)),
}

# What every GGUF states in the same words, none of it required: enough to compare two files of one architecture.
GENERIC: Final = {
    "hidden_size": Field((), ("embedding_length",)),
    "n_heads": Field((), ("attention.head_count",), 0),
    "n_kv_heads": Field((), ("attention.head_count_kv",), 0),
    "head_dim": Field((), ("attention.key_length",), 0),
    "intermediate_size": Field((), ("feed_forward_length",), 0),
    "norm_eps": Field((), ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"), 0.0, kind="real"),
    "rope_theta": Field((), ("rope.freq_base",), 0.0, kind="real"),
    "context_length": Field((), ("context_length",), 0),
    "n_experts": Field((), ("expert_count",), 0),
    "n_experts_used": Field((), ("expert_used_count",), 0),
    "moe_intermediate_size": Field((), ("expert_feed_forward_length",), 0),
}
