"""Nemotron-3 (Nemotron-H with experts): one head of two physical layers, attention and then experts.

The pattern "*E" says so: mtp.layers.0 fuses and attends, mtp.layers.1 routes and norms. GGUF folds both into one block.
"""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import fusion, matrix, norm
from mtptools.families.fields import COMMON, MOE
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"
INNER: Final = "moe_intermediate_size"
WIDTH: Final = "expert_hidden_size"
SHARED: Final = "shared_expert_intermediate_size"
FIRST: Final = "~layers.0.mixer."
SECOND: Final = "~layers.1.mixer."
OUTPUTS: Final = (Source("lm_head.weight"), Source("language_model.lm_head.weight"))


def _experts(name: str, shape: tuple[str, str], hf: str, mlx: str) -> Role:
    one_by_one = Source(f"{SECOND}experts.{{e}}.{hf}.weight", "stack_experts")
    return Role(name, ("n_experts", *shape), (one_by_one,), mlx=(Source(f"{SECOND}switch_mlp.{mlx}.weight"),))


FAMILY: Final = Family(
    name="nemotron_h",
    title="Nemotron-3",
    gguf_arch="nemotron_h_moe",
    hf_types=("nemotron_h", "nemotron_h_omni"),
    hf_prefixes=("language_model.backbone.", "language_model.model.", "backbone.", "model."),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="mtp.",
    expected={"mtp_hybrid_override_pattern": "*E"},
    mlx="drafts",
    fields={
        **COMMON,
        **MOE,
        "norm_eps": Field(
            ("layer_norm_epsilon", "norm_eps", "rms_norm_eps"),
            ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"),
            1e-5,
            kind="real",
        ),
        "head_dim": Field(("head_dim", "attention_head_dim"), ("attention.key_length",), 0),
        # What llama.cpp's converter writes as the feed-forward length of layers that have one.
        "intermediate_size": Field(("moe_intermediate_size", "intermediate_size"), ("feed_forward_length",), 0),
        SHARED: Field(("moe_shared_expert_intermediate_size",), ("expert_shared_feed_forward_length",), 0),
        "moe_latent_size": Field(("moe_latent_size",), ("moe_latent_size",), 0),
        WIDTH: Field(("moe_latent_size", "hidden_size"), ("moe_latent_size", "embedding_length")),
    },
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=False,
        evidence="vLLM 0.33 nemotron_h_mtp, SGLang 0.5.23, llama.cpp nemotron-h.cpp and conversion/nemotron.py: they "
        "agree, but for the last norm: RMSNorm in vLLM and SGLang, LayerNorm without bias in llama.cpp. Puzzle models "
        "keep a head under other names, and llama.cpp drops it",
    ),
    trunk={
        "all": (
            matrix(
                "token_embd.weight", ("vocab_size", H), "^embeddings.weight", "^embed_tokens.weight", kind="embedding"
            ),
            Role("output_norm.weight", (H,), (Source("^norm_f.weight"), Source("^norm.weight")), "norm"),
            Role("output.weight", ("vocab_size", H), OUTPUTS, "output", required=False, borrows="token_embd.weight"),
        )
    },
    head=(
        norm("attn_norm.weight", (H,), "~layers.0.norm.weight"),
        matrix("attn_q.weight", ("n_heads*head_dim", H), f"{FIRST}q_proj.weight"),
        matrix("attn_k.weight", ("n_kv_heads*head_dim", H), f"{FIRST}k_proj.weight"),
        matrix("attn_v.weight", ("n_kv_heads*head_dim", H), f"{FIRST}v_proj.weight"),
        matrix("attn_output.weight", (H, "n_heads*head_dim"), f"{FIRST}o_proj.weight"),
        matrix("attn_output.bias", (H,), f"{FIRST}o_proj.bias", kind="vector", required=False),
        norm("post_attention_norm.weight", (H,), "~layers.1.norm.weight"),
        matrix("ffn_gate_inp.weight", ("n_experts", H), f"{SECOND}gate.weight", kind="router"),
        Role(
            "exp_probs_b.bias", ("n_experts",), (Source(f"{SECOND}gate.e_score_correction_bias"),), "vector", f32=True
        ),
        matrix("ffn_latent_down.weight", (WIDTH, H), f"{SECOND}fc1_latent_proj.weight", when="moe_latent_size"),
        matrix("ffn_latent_up.weight", (H, WIDTH), f"{SECOND}fc2_latent_proj.weight", when="moe_latent_size"),
        _experts("ffn_up_exps.weight", (INNER, WIDTH), "up_proj", "fc1"),
        _experts("ffn_down_exps.weight", (WIDTH, INNER), "down_proj", "fc2"),
        matrix("ffn_up_shexp.weight", (SHARED, H), f"{SECOND}shared_experts.up_proj.weight"),
        matrix("ffn_down_shexp.weight", (H, SHARED), f"{SECOND}shared_experts.down_proj.weight"),
        # llama.cpp takes no private embedding or output matrix here.
        *fusion(
            "~layers.0.eh_proj.weight",
            "~layers.0.enorm.weight",
            "~layers.0.hnorm.weight",
            "~layers.1.final_layernorm.weight",
        ),
    ),
)
