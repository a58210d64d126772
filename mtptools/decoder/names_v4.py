"""The decoder's own tables of DeepSeek-V4's names, by role. They share nothing with the converter's.

Sources: names of deepseek-ai/DeepSeek-V4-Flash as transformers 5.23 reads them (`conversion_mapping.py`), head names as
vLLM 0.33 reads them; llama.cpp's `src/models/deepseek4.cpp`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GGUF_LAYER", "GGUF_STREAMS", "HF_EXPERT", "HF_FUSION", "HF_LAYER", "HF_TOP"]


def _streams(role: str, name: str, end: str = "") -> dict[str, str]:
    """The three tensors of a mix of streams."""
    return {role: f"{name}_fn{end}", f"{role}_base": f"{name}_base{end}", f"{role}_scale": f"{name}_scale{end}"}


HF_EXPERT: Final = {"gate": "w1", "up": "w3", "down": "w2"}

HF_LAYER: Final = {
    "mixer_norm": "attn_norm.weight",
    "ffn_norm": "ffn_norm.weight",
    **_streams("mixer_streams", "hc_attn"),
    **_streams("ffn_streams", "hc_ffn"),
    "query_down": "attn.wq_a.weight",
    "query_norm": "attn.q_norm.weight",
    "query_up": "attn.wq_b.weight",
    "key": "attn.wkv.weight",
    "key_norm": "attn.kv_norm.weight",
    "sinks": "attn.attn_sink",
    "group_out": "attn.wo_a.weight",
    "attention_out": "attn.wo_b.weight",
    "window_values": "attn.compressor.wkv.weight",
    "window_gates": "attn.compressor.wgate.weight",
    "window_bias": "attn.compressor.ape",
    "window_norm": "attn.compressor.norm.weight",
    "index_values": "attn.indexer.compressor.wkv.weight",
    "index_gates": "attn.indexer.compressor.wgate.weight",
    "index_bias": "attn.indexer.compressor.ape",
    "index_norm": "attn.indexer.compressor.norm.weight",
    "index_query": "attn.indexer.wq_b.weight",
    "index_shares": "attn.indexer.weights_proj.weight",
    "router": "ffn.gate.weight",
    "router_bias": "ffn.gate.bias",
    "router_table": "ffn.gate.tid2eid",
    "experts": "ffn.experts.",
    "stacked_experts": "ffn.switch_mlp.",
    **{f"shared_{part}": f"ffn.shared_experts.{name}.weight" for part, name in HF_EXPERT.items()},
}

HF_TOP: Final = {"embed": "embed.weight", "final_norm": "norm.weight", **_streams("streams", "hc_head")}

HF_FUSION: Final = {
    "embed_proj": "e_proj.weight",
    "hidden_proj": "h_proj.weight",
    "embed_norm": "enorm.weight",
    "hidden_norm": "hnorm.weight",
    "head_norm": "norm.weight",
    "head_embed": "emb.tok_emb.weight",
    "head_output": "head.weight",
    **_streams("streams", "hc_head"),
}

GGUF_STREAMS: Final = _streams("streams", "output_hc", ".weight")
"""Outside of blocks. Of the head in a file of its own, of the trunk elsewhere."""

GGUF_LAYER: Final = {
    "ffn_norm": "ffn_norm.weight",
    **_streams("mixer_streams", "hc_attn", ".weight"),
    **_streams("ffn_streams", "hc_ffn", ".weight"),
    "query_down": "attn_q_a.weight",
    "query_norm": "attn_q_a_norm.weight",
    "query_up": "attn_q_b.weight",
    "key": "attn_kv.weight",
    "key_norm": "attn_kv_a_norm.weight",
    "sinks": "attn_sinks.weight",
    "group_out": "attn_output_a.weight",
    "attention_out": "attn_output_b.weight",
    "window_values": "attn_compressor_kv.weight",
    "window_gates": "attn_compressor_gate.weight",
    "window_bias": "attn_compressor_ape.weight",
    "window_norm": "attn_compressor_norm.weight",
    "index_values": "indexer_compressor_kv.weight",
    "index_gates": "indexer_compressor_gate.weight",
    "index_bias": "indexer_compressor_ape.weight",
    "index_norm": "indexer_compressor_norm.weight",
    "index_query": "indexer.attn_q_b.weight",
    "index_shares": "indexer.proj.weight",
    "router_table": "ffn_gate_tid2eid.weight",
}
