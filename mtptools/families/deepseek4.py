"""DeepSeek-V4 and V4-Flash: hyper-connection streams, sliding single-head latent attention, FP8 and FP4 weights."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import matrix, norm
from mtptools.families.fields import COMMON, SHARED_EXPERTS
from mtptools.families.spec import Family, Field, Role, Sign, Source, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"
STREAMS: Final = "hc_mult*hidden_size"
MIX: Final = "2*hc_mult+hc_mult*hc_mult"
SHARED: Final = "n_shared_experts*moe_intermediate_size"
DSPARK: Final = "DSpark draft stages, stored where an MTP head would be (V4-Flash-0731 and V4.1 ship these, and no MTP)"
DSPARK_HINT: Final = "run it with a runtime that knows DSpark; MTP heads are in the earlier V4 releases"


def _f32(name: str, shape: tuple[str | int, ...], hf: str, *, root: bool = False) -> Role:
    return Role(name, shape, (Source(hf),), "vector", f32=True, root=root)


def _expert(name: str, shape: tuple[str | int, ...], hf: str) -> Role:
    return Role(name, shape, (Source(f"~ffn.experts.{{e}}.{hf}.weight", "stack_experts"),), scheme="fp4-e8m0")


HEAD: Final = (
    norm("attn_norm.weight", (H,), "~attn_norm.weight"),
    norm("ffn_norm.weight", (H,), "~ffn_norm.weight"),
    _f32("attn_sinks.weight", ("n_heads",), "~attn.attn_sink"),
    matrix("attn_q_a.weight", ("q_lora_rank", H), "~attn.wq_a.weight"),
    norm("attn_q_a_norm.weight", ("q_lora_rank",), "~attn.q_norm.weight"),
    matrix("attn_q_b.weight", ("n_heads*head_dim", "q_lora_rank"), "~attn.wq_b.weight"),
    matrix("attn_kv.weight", ("head_dim", H), "~attn.wkv.weight"),
    norm("attn_kv_a_norm.weight", ("head_dim",), "~attn.kv_norm.weight"),
    matrix("attn_output_a.weight", ("o_groups*o_lora_rank", ""), "~attn.wo_a.weight"),
    matrix("attn_output_b.weight", (H, "o_groups*o_lora_rank"), "~attn.wo_b.weight"),
    _f32("hc_attn_fn.weight", (MIX, STREAMS), "~hc_attn_fn"),
    _f32("hc_attn_base.weight", (MIX,), "~hc_attn_base"),
    _f32("hc_attn_scale.weight", (3,), "~hc_attn_scale"),
    _f32("hc_ffn_fn.weight", (MIX, STREAMS), "~hc_ffn_fn"),
    _f32("hc_ffn_base.weight", (MIX,), "~hc_ffn_base"),
    _f32("hc_ffn_scale.weight", (3,), "~hc_ffn_scale"),
    matrix("ffn_gate_inp.weight", ("n_experts", H), "~ffn.gate.weight", kind="router"),
    _f32("exp_probs_b.bias", ("n_experts",), "~ffn.gate.bias"),
    _expert("ffn_gate_exps.weight", ("n_experts", "moe_intermediate_size", H), "w1"),
    _expert("ffn_up_exps.weight", ("n_experts", "moe_intermediate_size", H), "w3"),
    _expert("ffn_down_exps.weight", ("n_experts", H, "moe_intermediate_size"), "w2"),
    matrix("ffn_gate_shexp.weight", (SHARED, H), "~ffn.shared_experts.w1.weight"),
    matrix("ffn_up_shexp.weight", (SHARED, H), "~ffn.shared_experts.w3.weight"),
    matrix("ffn_down_shexp.weight", (H, SHARED), "~ffn.shared_experts.w2.weight"),
    Role(
        "nextn.eh_proj.weight",
        (H, f"2*{H}"),
        (Source("~e_proj.weight", "columns", ("~h_proj.weight",), (H, H)),),
    ),
    norm("nextn.enorm.weight", (H,), "~enorm.weight"),
    norm("nextn.hnorm.weight", (H,), "~hnorm.weight"),
    norm("nextn.shared_head_norm.weight", (H,), "~norm.weight"),
    # The head mixes its streams down itself. llama.cpp reads these outside of blocks, where a trunk has its own.
    _f32("output_hc_fn.weight", ("hc_mult", STREAMS), "~hc_head_fn", root=True),
    _f32("output_hc_base.weight", ("hc_mult",), "~hc_head_base", root=True),
    _f32("output_hc_scale.weight", (1,), "~hc_head_scale", root=True),
    Role(
        "nextn.embed_tokens.weight",
        ("vocab_size", H),
        (Source("~emb.tok_emb.weight"),),
        "embedding",
        required=False,
        borrows="token_embd.weight",
    ),
    Role(
        "nextn.shared_head_head.weight",
        ("vocab_size", H),
        (Source("~head.weight"),),
        "output",
        required=False,
        borrows="output.weight",
    ),
)

FAMILY: Final = Family(
    name="deepseek4",
    title="DeepSeek-V4 / V4-Flash",
    gguf_arch="deepseek4",
    hf_types=("deepseek_v4",),
    hf_prefixes=("model.", ""),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="mtp.{d}.",
    fields={
        **COMMON,
        **SHARED_EXPERTS,
        "head_dim": Field(("head_dim",), ("attention.key_length",)),
        "qk_rope_head_dim": Field(("qk_rope_head_dim",), ("rope.dimension_count",)),
        "q_lora_rank": Field(("q_lora_rank",), ("attention.q_lora_rank",)),
        "o_lora_rank": Field(("o_lora_rank",), ("attention.output_lora_rank",)),
        "o_groups": Field(("o_groups",), ("attention.output_group_count",)),
        "hc_mult": Field(("hc_mult",), ("hyper_connection.count",)),
    },
    wiring=Wiring(
        concat="sum",
        tap="streams",
        recycle="streams",
        mask_first=False,
        evidence="DeepSeek inference/model.py as copied in SGLang deepseek_v4_nextn and mlx-vlm; llama.cpp "
        "deepseek4.cpp joins both projections to eh = [e|h]. vLLM zeroes the embedding at position 0, others do not",
    ),
    trunk={
        "all": (
            matrix("token_embd.weight", ("vocab_size", H), "^embed.weight", kind="embedding"),
            norm("output_norm.weight", (H,), "^norm.weight"),
            matrix("output.weight", ("vocab_size", H), "^head.weight", kind="output"),
        ),
    },
    head=HEAD,
    not_a_head=(
        Sign("main_proj.weight", DSPARK, DSPARK_HINT),
        *(
            Sign(f"dspark_{key}", DSPARK, DSPARK_HINT)
            for key in ("target_layer_ids", "block_size", "noise_token_id", "markov_rank")
        ),
    ),
)
