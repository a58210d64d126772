"""The decoder's own tables of GGUF names, by role. They share nothing with the converter's.

Source: llama.cpp's loaders (`src/models/qwen35.cpp`, `qwen3next.cpp`, `glm4-moe.cpp`, `deepseek2.cpp`): the names and
shapes they ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mtptools.decoder.names_v4 import GGUF_LAYER, GGUF_STREAMS

__all__ = ["FUSION", "GGUF_BLOCK", "GGUF_TOP"]

GGUF_TOP: Final = {
    "embed": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "output": "output.weight",
    **GGUF_STREAMS,
}

FUSION: Final = {
    "fuse": "nextn.eh_proj.weight",
    "embed_norm": "nextn.enorm.weight",
    "hidden_norm": "nextn.hnorm.weight",
    "head_norm": "nextn.shared_head_norm.weight",
    "head_embed": "nextn.embed_tokens.weight",
    "head_output": "nextn.shared_head_head.weight",
}

_COMMON: Final = {
    "mixer_norm": "attn_norm.weight",
    "attention_out": "attn_output.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "router": "ffn_gate_inp.weight",
    "router_bias": "exp_probs_b.bias",
    "switch": "ffn_gate_inp_shexp.weight",
    **{f"shared_{part}": f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")},
    **{f"expert_{part}": f"ffn_{part}_exps.weight" for part in ("gate_up", "gate", "up", "down")},
    **FUSION,
}
_ATTENTION: Final = {
    "ffn_norm": "post_attention_norm.weight",
    **{part: f"attn_{part[0]}.weight" for part in ("query", "key", "value")},
    **{f"{part}_bias": f"attn_{part[0]}.bias" for part in ("query", "key", "value")},
    "qkv": "attn_qkv.weight",
    "qkv_bias": "attn_qkv.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
}
_DELTA: Final = {
    "delta_qkv": "attn_qkv.weight",
    "delta_z": "attn_gate.weight",
    "delta_b": "ssm_beta.weight",
    "delta_a": "ssm_alpha.weight",
    "delta_conv": "ssm_conv1d.weight",
    "delta_dt": "ssm_dt.bias",
    "delta_decay": "ssm_a",
    "delta_norm": "ssm_norm.weight",
    "delta_out": "ssm_out.weight",
}

GGUF_BLOCK: Final[Mapping[str, Mapping[str, str]]] = {
    "qwen35": {**_COMMON, **_ATTENTION, **_DELTA},
    "qwen35moe": {**_COMMON, **_ATTENTION, **_DELTA},
    "qwen3next": {
        **_COMMON,
        **_ATTENTION,
        **_DELTA,
        "delta_qkvz": "ssm_in.weight",  # files older than its split
        "delta_ba": "ssm_ba.weight",
    },
    "glm4moe": {**_COMMON, **_ATTENTION},
    "deepseek_v3": {
        **_COMMON,
        "ffn_norm": "ffn_norm.weight",
        "query": "attn_q.weight",
        "query_down": "attn_q_a.weight",
        "query_norm": "attn_q_a_norm.weight",
        "query_up": "attn_q_b.weight",
        "latent_down": "attn_kv_a_mqa.weight",
        "latent_norm": "attn_kv_a_norm.weight",
        "latent_up": "attn_kv_b.weight",  # files older than its split
        "key_up": "attn_k_b.weight",
        "value_up": "attn_v_b.weight",
    },
    "mimo": {**_COMMON, **_ATTENTION, "ffn_norm": "ffn_norm.weight"},  # as far as it can be named: there is no GGUF
    "deepseek4": {**_COMMON, **GGUF_LAYER},
}
"""Family -> role -> name in `blk.N.`"""
