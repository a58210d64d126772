"""Role tables shared by families: attention, feed-forward and recurrent blocks in their common HF spelling.

`at` is what stands before the block's names in HF: "^layers.{n}." in the trunk, "~layers.{d}." in a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mtptools.families.spec import Kind, Role, Source

__all__ = ["GGUF_FUSED", "deltanet", "dense_ffn", "gated_attention", "matrix", "norm", "qwen_moe", "sandwich"]

# GGUF lets a block hold these fused tensors instead of the roles they contain (llama.cpp, create_tensor_qkv and
# create_tensor_gate_up_exps).
GGUF_FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "attn_qkv.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "ffn_gate_up_exps.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
}

Shape = tuple[str | int, ...]


def matrix(name: str, shape: Shape, *hf: str, kind: Kind = "matrix") -> Role:
    return Role(name, shape, tuple(Source(pattern) for pattern in hf), kind)


def norm(name: str, shape: Shape, hf: str, values: str = "plain") -> Role:
    """An RMSNorm weight; `values` is the value convention of the HF dialect."""
    return Role(name, shape, (Source(hf),), "norm", {"hf": values})


def sandwich(at: str, values: str) -> tuple[Role, ...]:
    """The two norms of a pre-norm decoder layer."""
    return (
        norm("attn_norm.weight", ("hidden",), f"{at}input_layernorm.weight", values),
        norm("post_attention_norm.weight", ("hidden",), f"{at}post_attention_layernorm.weight", values),
    )


def gated_attention(at: str, values: str) -> tuple[Role, ...]:
    """Grouped-query attention whose q_proj also holds the output gate, interleaved per head."""
    at = f"{at}self_attn."
    return (
        matrix("attn_q.weight", ("q_gate", "hidden"), f"{at}q_proj.weight"),
        matrix("attn_k.weight", ("kv", "hidden"), f"{at}k_proj.weight"),
        matrix("attn_v.weight", ("kv", "hidden"), f"{at}v_proj.weight"),
        matrix("attn_output.weight", ("hidden", "attn_out"), f"{at}o_proj.weight"),
        norm("attn_q_norm.weight", ("head_dim",), f"{at}q_norm.weight", values),
        norm("attn_k_norm.weight", ("head_dim",), f"{at}k_norm.weight", values),
    )


def deltanet(at: str) -> tuple[Role, ...]:
    """Gated DeltaNet. GGUF also transforms values (-exp of A_log, value-head order): names and shapes only here."""
    at = f"{at}linear_attn."
    return (
        matrix("attn_qkv.weight", ("conv_dim", "hidden"), f"{at}in_proj_qkv.weight"),
        matrix("attn_gate.weight", ("value_dim", "hidden"), f"{at}in_proj_z.weight"),
        matrix("ssm_beta.weight", ("v_heads", "hidden"), f"{at}in_proj_b.weight"),
        matrix("ssm_alpha.weight", ("v_heads", "hidden"), f"{at}in_proj_a.weight"),
        matrix("ssm_conv1d.weight", ("conv_dim", "conv_kernel"), f"{at}conv1d.weight", kind="vector"),
        matrix("ssm_dt.bias", ("v_heads",), f"{at}dt_bias", kind="vector"),
        matrix("ssm_a", ("v_heads",), f"{at}A_log", kind="vector"),
        norm("ssm_norm.weight", ("v_head_dim",), f"{at}norm.weight"),
        matrix("ssm_out.weight", ("hidden", "value_dim"), f"{at}out_proj.weight"),
    )


def dense_ffn(at: str) -> tuple[Role, ...]:
    at = f"{at}mlp."
    return (
        matrix("ffn_gate.weight", ("ffn", "hidden"), f"{at}gate_proj.weight"),
        matrix("ffn_up.weight", ("ffn", "hidden"), f"{at}up_proj.weight"),
        matrix("ffn_down.weight", ("hidden", "ffn"), f"{at}down_proj.weight"),
    )


def qwen_moe(at: str) -> tuple[Role, ...]:
    """Routed experts, one by one (Qwen3.5 releases) or fused in 3-D (3.6), and one gated shared expert."""
    at = f"{at}mlp."
    fused, each = f"{at}experts.gate_up_proj", f"{at}experts.{{e}}."
    gate = (Source(fused, "gate_half"), Source(f"{each}gate_proj.weight", "stack_experts"))
    up = (Source(fused, "up_half"), Source(f"{each}up_proj.weight", "stack_experts"))
    down = (Source(f"{at}experts.down_proj"), Source(f"{each}down_proj.weight", "stack_experts"))
    return (
        matrix("ffn_gate_inp.weight", ("experts", "hidden"), f"{at}gate.weight", kind="router"),
        Role("ffn_gate_exps.weight", ("experts", "moe_ffn", "hidden"), gate),
        Role("ffn_up_exps.weight", ("experts", "moe_ffn", "hidden"), up),
        Role("ffn_down_exps.weight", ("experts", "hidden", "moe_ffn"), down),
        # [1, hidden] in HF and in files of current converters, [hidden] in older files; llama.cpp takes both.
        matrix("ffn_gate_inp_shexp.weight", (1, "hidden"), f"{at}shared_expert_gate.weight", kind="router"),
        matrix("ffn_gate_shexp.weight", ("shexp_ffn", "hidden"), f"{at}shared_expert.gate_proj.weight"),
        matrix("ffn_up_shexp.weight", ("shexp_ffn", "hidden"), f"{at}shared_expert.up_proj.weight"),
        matrix("ffn_down_shexp.weight", ("hidden", "shexp_ffn"), f"{at}shared_expert.down_proj.weight"),
    )
