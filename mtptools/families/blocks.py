"""Role tables shared by families: attention, feed-forward and recurrent blocks in their common HF spelling.

`at` is what stands before the block's names in HF: "^layers.{n}." in the trunk; "~layers.{d}." or "~" in a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mtptools.families.spec import Kind, Role, Source

__all__ = [
    "GGUF_FUSED",
    "attention",
    "deltanet",
    "dense_ffn",
    "dsa_indexer",
    "experts",
    "fusion",
    "gated_attention",
    "globals_of",
    "matrix",
    "mla",
    "moe",
    "norm",
    "numbered_experts",
    "private",
    "qwen_fusion",
    "qwen_moe",
    "sandwich",
    "shared_expert",
    "v3_fusion",
]

# GGUF lets a block hold these fused tensors instead of the roles they contain (llama.cpp, create_tensor_qkv and
# create_tensor_gate_up_exps; attn_kv_b in deepseek2 files older than its split).
GGUF_FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "attn_qkv.weight": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "attn_qkv.bias": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "ffn_gate_up_exps.weight": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "attn_kv_b.weight": ("attn_k_b.weight", "attn_v_b.weight"),
}

Shape = tuple[str | int, ...]
HIDDEN: Final = "hidden_size"


def matrix(name: str, shape: Shape, *hf: str, kind: Kind = "matrix", required: bool = True, when: str = "") -> Role:
    return Role(name, shape, tuple(Source(pattern) for pattern in hf), kind, required=required, when=when)


def norm(name: str, shape: Shape, hf: str, values: str = "plain", *, required: bool = True, when: str = "") -> Role:
    """An RMSNorm weight; `values` is the value convention of the HF dialect."""
    return Role(name, shape, (Source(hf),), "norm", {"hf": values}, required, when=when)


def sandwich(at: str, values: str = "plain", second: str = "post_attention_norm.weight") -> tuple[Role, ...]:
    """The two norms of a pre-norm decoder layer; `second` is what the architecture calls the one before the FFN."""
    return (
        norm("attn_norm.weight", (HIDDEN,), f"{at}input_layernorm.weight", values),
        norm(second, (HIDDEN,), f"{at}post_attention_layernorm.weight", values),
    )


def globals_of(
    values: str = "plain", outputs: tuple[str, ...] = ("lm_head.weight",), *, tied: bool = True
) -> tuple[Role, ...]:
    """Embedding, final norm and output matrix."""
    return (
        matrix("token_embd.weight", ("vocab_size", HIDDEN), "^embed_tokens.weight", kind="embedding"),
        norm("output_norm.weight", (HIDDEN,), "^norm.weight", values),
        Role(
            "output.weight",
            ("vocab_size", HIDDEN),
            tuple(Source(name) for name in outputs),
            "output",
            required=not tied,
            borrows="token_embd.weight" if tied else None,
        ),
    )


def fusion(
    eh: str,
    enorm: str,
    hnorm: str,
    last: str,
    values: str = "plain",
    *,
    last_name: str = "nextn.shared_head_norm.weight",
) -> tuple[Role, ...]:
    """The fusion matrix, its two norms, and the norm before the output matrix, wherever HF keeps them.

    last_name  what GGUF calls the last one
    """
    return (
        matrix("nextn.eh_proj.weight", (HIDDEN, f"2*{HIDDEN}"), eh),
        norm("nextn.enorm.weight", (HIDDEN,), enorm, values),
        norm("nextn.hnorm.weight", (HIDDEN,), hnorm, values),
        norm(last_name, (HIDDEN,), last, values),
    )


def private(embed: str = "", output: str = "") -> tuple[Role, ...]:
    """A head's own embedding and output matrix; "" where releases have none, then only a GGUF may."""
    kinds: tuple[tuple[str, str, Kind, str], ...] = (
        ("nextn.embed_tokens.weight", embed, "embedding", "token_embd.weight"),
        ("nextn.shared_head_head.weight", output, "output", "output.weight"),
    )
    return tuple(
        Role(name, ("vocab_size", HIDDEN), (Source(hf),) if hf else (), kind, required=False, borrows=trunk)
        for name, hf, kind, trunk in kinds
    )


def v3_fusion(at: str, *, embed: str = "", output: str = "", values: str = "plain") -> tuple[Role, ...]:
    """Fusion, norm and private matrices under the names of DeepSeek-V3.

    embed, output  HF names of a private embedding and output matrix, "" where the family has none
    """
    return (
        *fusion(
            f"{at}eh_proj.weight", f"{at}enorm.weight", f"{at}hnorm.weight", f"{at}shared_head.norm.weight", values
        ),
        *private(embed, output),
    )


def qwen_fusion(values: str) -> tuple[Role, ...]:
    """Fusion and norm under the names of Qwen3-Next, whose head has them once, outside of its layers."""
    return (
        *fusion("~fc.weight", "~pre_fc_norm_embedding.weight", "~pre_fc_norm_hidden.weight", "~norm.weight", values),
        *private(),
    )


def attention(at: str, *, biases: bool = False, norms: str = "", gate: bool = False) -> tuple[Role, ...]:
    """Grouped-query attention.

    biases  q, k and v may have biases
    norms   value convention of q_norm and k_norm where the family may have them, "" where it has none
    gate    q_proj also holds the output gate, interleaved per head
    """
    at = f"{at}self_attn."
    q_rows = ("2*" if gate else "") + "n_heads*head_dim"
    roles = [
        matrix("attn_q.weight", (q_rows, HIDDEN), f"{at}q_proj.weight"),
        matrix("attn_k.weight", ("n_kv_heads*head_dim", HIDDEN), f"{at}k_proj.weight"),
        matrix("attn_v.weight", ("n_kv_heads*head_dim", HIDDEN), f"{at}v_proj.weight"),
        matrix("attn_output.weight", (HIDDEN, "n_heads*head_dim"), f"{at}o_proj.weight"),
    ]
    if biases:
        sizes = {"q": "n_heads*head_dim", "k": "n_kv_heads*head_dim", "v": "n_kv_heads*head_dim"}
        roles += [
            matrix(f"attn_{x}.bias", (size,), f"{at}{x}_proj.bias", kind="vector", required=False)
            for x, size in sizes.items()
        ]
    if norms:
        roles += [
            norm(f"attn_{x}_norm.weight", ("head_dim",), f"{at}{x}_norm.weight", norms, required=gate) for x in "qk"
        ]
    return tuple(roles)


def gated_attention(at: str, values: str) -> tuple[Role, ...]:
    """Grouped-query attention of Qwen3-Next and later."""
    return attention(at, norms=values, gate=True)


def mla(at: str) -> tuple[Role, ...]:
    """Multi-head latent attention (DeepSeek-V2 and later)."""
    at = f"{at}self_attn."
    rank, head = "kv_lora_rank", "n_heads*qk_nope_head_dim+n_heads*qk_rope_head_dim"
    kv_b = f"{at}kv_b_proj.weight"
    # mlx-lm takes kv_b apart as llama.cpp does, under names of its own (models/mla.py).
    k_b = Role(
        "attn_k_b.weight",
        ("n_heads", rank, "qk_nope_head_dim"),
        (Source(kv_b, "k_of_kv_b"),),
        mlx=(Source(f"{at}embed_q.weight"), Source(kv_b, "k_of_kv_b")),
    )
    v_b = Role(
        "attn_v_b.weight",
        ("n_heads", "v_head_dim", rank),
        (Source(kv_b, "v_of_kv_b"),),
        mlx=(Source(f"{at}unembed_out.weight"), Source(kv_b, "v_of_kv_b")),
    )
    return (
        matrix("attn_q.weight", (head, HIDDEN), f"{at}q_proj.weight", when="!q_lora_rank"),
        matrix("attn_q_a.weight", ("q_lora_rank", HIDDEN), f"{at}q_a_proj.weight", when="q_lora_rank"),
        norm("attn_q_a_norm.weight", ("q_lora_rank",), f"{at}q_a_layernorm.weight", when="q_lora_rank"),
        matrix("attn_q_b.weight", (head, "q_lora_rank"), f"{at}q_b_proj.weight", when="q_lora_rank"),
        matrix("attn_kv_a_mqa.weight", (f"{rank}+qk_rope_head_dim", HIDDEN), f"{at}kv_a_proj_with_mqa.weight"),
        norm("attn_kv_a_norm.weight", (rank,), f"{at}kv_a_layernorm.weight"),
        k_b,
        v_b,
        matrix("attn_output.weight", (HIDDEN, "n_heads*v_head_dim"), f"{at}o_proj.weight"),
    )


def dsa_indexer(at: str, *, required: bool = True) -> tuple[Role, ...]:
    """The indexer of DeepSeek Sparse Attention, which picks the positions that latent attention looks at."""
    at = f"{at}self_attn.indexer."
    size = "index_head_dim"
    return (
        matrix(
            "indexer.attn_q_b.weight", (f"index_n_heads*{size}", "q_lora_rank"), f"{at}wq_b.weight", required=required
        ),
        matrix("indexer.attn_k.weight", (size, HIDDEN), f"{at}wk.weight", required=required),
        norm("indexer.k_norm.weight", (size,), f"{at}k_norm.weight", required=required),
        matrix("indexer.k_norm.bias", (size,), f"{at}k_norm.bias", kind="vector", required=required),
        # Small and exact in GGUF, as a router is.
        matrix(
            "indexer.proj.weight",
            ("index_n_heads", HIDDEN),
            f"{at}weights_proj.weight",
            kind="router",
            required=required,
        ),
    )


def deltanet(at: str) -> tuple[Role, ...]:
    """Gated DeltaNet. GGUF also orders value heads otherwise (see `mtptools.ops.trunk_values`): names and shapes."""
    at = f"{at}linear_attn."
    value = "linear_v_heads*linear_v_head_dim"
    conv = f"2*linear_k_heads*linear_k_head_dim+{value}"
    return (
        matrix("attn_qkv.weight", (conv, HIDDEN), f"{at}in_proj_qkv.weight"),
        matrix("attn_gate.weight", (value, HIDDEN), f"{at}in_proj_z.weight"),
        matrix("ssm_beta.weight", ("linear_v_heads", HIDDEN), f"{at}in_proj_b.weight"),
        matrix("ssm_alpha.weight", ("linear_v_heads", HIDDEN), f"{at}in_proj_a.weight"),
        matrix("ssm_conv1d.weight", (conv, "conv_kernel"), f"{at}conv1d.weight", kind="vector"),
        matrix("ssm_dt.bias", ("linear_v_heads",), f"{at}dt_bias", kind="vector"),
        Role("ssm_a", ("linear_v_heads",), (Source(f"{at}A_log"),), "vector", {"hf": "neg_exp"}),
        norm("ssm_norm.weight", ("linear_v_head_dim",), f"{at}norm.weight"),
        matrix("ssm_out.weight", (HIDDEN, value), f"{at}out_proj.weight"),
    )


def dense_ffn(at: str, size: str = "intermediate_size") -> tuple[Role, ...]:
    at = f"{at}mlp."
    return (
        matrix("ffn_gate.weight", (size, HIDDEN), f"{at}gate_proj.weight"),
        matrix("ffn_up.weight", (size, HIDDEN), f"{at}up_proj.weight"),
        matrix("ffn_down.weight", (HIDDEN, size), f"{at}down_proj.weight"),
    )


def experts(at: str, *, single: bool) -> tuple[Role, ...]:
    """Routed experts, one by one or fused in 3-D; MLX stacks them under `switch_mlp`.

    single  True: releases hold them one by one, and so they are written
    """
    fused, each, mlx = f"{at}experts.gate_up_proj", f"{at}experts.{{e}}.", f"{at}switch_mlp."
    gate = (Source(fused, "gate_half"), Source(f"{each}gate_proj.weight", "stack_experts"))
    up = (Source(fused, "up_half"), Source(f"{each}up_proj.weight", "stack_experts"))
    down = (Source(f"{at}experts.down_proj"), Source(f"{each}down_proj.weight", "stack_experts"))
    table = (
        ("ffn_gate_exps.weight", ("n_experts", "moe_intermediate_size", HIDDEN), gate, "gate_proj"),
        ("ffn_up_exps.weight", ("n_experts", "moe_intermediate_size", HIDDEN), up, "up_proj"),
        ("ffn_down_exps.weight", ("n_experts", HIDDEN, "moe_intermediate_size"), down, "down_proj"),
    )
    order = -1 if single else 1
    return tuple(
        Role(name, shape, hf[::order], mlx=(Source(f"{mlx}{last}.weight"),)) for name, shape, hf, last in table
    )


def qwen_moe(at: str, *, single: bool = False) -> tuple[Role, ...]:
    """Routed experts and one gated shared expert (Qwen3-Next, Qwen3.5, 3.6)."""
    at = f"{at}mlp."
    shared, size = f"{at}shared_expert.", "shared_expert_intermediate_size"
    return (
        matrix("ffn_gate_inp.weight", ("n_experts", HIDDEN), f"{at}gate.weight", kind="router"),
        *experts(at, single=single),
        # [1, hidden] in HF and in files of current converters, [hidden] in older files; llama.cpp takes both.
        matrix("ffn_gate_inp_shexp.weight", (1, HIDDEN), f"{at}shared_expert_gate.weight", kind="router"),
        matrix("ffn_gate_shexp.weight", (size, HIDDEN), f"{shared}gate_proj.weight"),
        matrix("ffn_up_shexp.weight", (size, HIDDEN), f"{shared}up_proj.weight"),
        matrix("ffn_down_shexp.weight", (HIDDEN, size), f"{shared}down_proj.weight"),
    )


def moe(at: str, *, bias: str = "gate.e_score_correction_bias") -> tuple[Role, ...]:
    """Routed experts behind a biased sigmoid router, and shared experts as one (DeepSeek-V3, GLM-4.5 and later)."""
    at = f"{at}mlp."
    shared, size = f"{at}shared_experts.", "n_shared_experts*moe_intermediate_size"
    when = "n_shared_experts"
    return (
        matrix("ffn_gate_inp.weight", ("n_experts", HIDDEN), f"{at}gate.weight", kind="router"),
        Role("exp_probs_b.bias", ("n_experts",), (Source(f"{at}{bias}"),), "vector", f32=True),
        *experts(at, single=True),
        matrix("ffn_gate_shexp.weight", (size, HIDDEN), f"{shared}gate_proj.weight", when=when),
        matrix("ffn_up_shexp.weight", (size, HIDDEN), f"{shared}up_proj.weight", when=when),
        matrix("ffn_down_shexp.weight", (HIDDEN, size), f"{shared}down_proj.weight", when=when),
    )


def numbered_experts(at: str, width: str = HIDDEN) -> tuple[Role, ...]:
    """Routed experts one by one, as w1 (gate), w3 (up) and w2 (down); `width` is what goes in and comes out."""
    inner = "moe_intermediate_size"
    table = (("gate", "w1", (inner, width)), ("up", "w3", (inner, width)), ("down", "w2", (width, inner)))
    return tuple(
        Role(
            f"ffn_{name}_exps.weight",
            ("n_experts", *shape),
            (Source(f"{at}experts.{{e}}.{w}.weight", "stack_experts"),),
        )
        for name, w, shape in table
    )


def shared_expert(at: str, size: str) -> tuple[Role, ...]:
    """Shared experts as one, ungated; `at` ends in what HF calls them."""
    return (
        matrix("ffn_gate_shexp.weight", (size, HIDDEN), f"{at}gate_proj.weight"),
        matrix("ffn_up_shexp.weight", (size, HIDDEN), f"{at}up_proj.weight"),
        matrix("ffn_down_shexp.weight", (HIDDEN, size), f"{at}down_proj.weight"),
    )
