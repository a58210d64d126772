"""Ling-2.5 and Ling-3.0 (Bailing hybrid): latent attention in the head, whatever the trunk's last layer has."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families.blocks import fusion, globals_of, matrix, mla, moe, sandwich
from mtptools.families.fields import MLA, SHARED_EXPERTS
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["FAMILY"]

AT: Final = "~attention."


def _renamed(role: Role) -> Role:
    """The release says `attention` for `self_attn`, and `dense` for `o_proj`."""
    hf = tuple(
        replace(one, pattern=one.pattern.replace("~self_attn.o_proj", f"{AT}dense").replace("~self_attn.", AT))
        for one in role.hf
    )
    mlx = tuple(replace(one, pattern=one.pattern.replace("~self_attn.", AT)) for one in role.mlx)
    return replace(role, hf=hf, mlx=mlx)


FAMILY: Final = Family(
    name="bailing_hybrid",
    title="Ling-2.5 / 3.0",
    gguf_arch="bailingmoe3",
    hf_types=("bailing_hybrid",),
    hf_prefixes=("model.language_model.", "model."),
    hf_ignored=("model.visual.", "visual.", "linear_proj."),
    hf_depth=("num_nextn_predict_layers", "num_mtp_layers"),
    hf_head="^layers.{n}.",
    fields={
        **MLA,
        **SHARED_EXPERTS,
        "n_shared_experts": Field(("num_shared_experts", "n_shared_experts"), ("expert_shared_count",), 1),
        # llama.cpp counts one key-value head where attention is latent, none where it is linear.
        "n_kv_heads": Field((), ("attention.head_count_kv",), 1),
    },
    mlx="drops",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=False,
        evidence="order, tap, recycle: vLLM 0.33 bailing_moe_mtp (Ling-2.5) and bailing_moe_v3_mtp, SGLang 0.5.23 "
        "bailing_moe_nextn, llama.cpp bailingmoe3.cpp (Ling-3.0): they agree. Position 0: vLLM zeroes it for Ling-2.5 "
        "alone. The gate g_proj is Ling-3.0's; llama.cpp has no graph for 2.5",
    ),
    trunk={
        "all": (
            matrix(
                "token_embd.weight",
                ("vocab_size", "hidden_size"),
                "^word_embeddings.weight",
                "^embed_tokens.weight",
                kind="embedding",
            ),
            *globals_of()[1:],
        )
    },
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *(_renamed(role) for role in mla("~")),
        Role("attn_gate.weight", ("n_heads", "hidden_size"), (Source(f"{AT}g_proj.weight"),), required=False),
        *moe("~", bias="gate.expert_bias"),
        # llama.cpp takes no private embedding or output matrix here.
        *fusion(
            "~eh_proj.weight",
            "~enorm.weight",
            "~hnorm.weight",
            "~final_layernorm.weight",
            last_name="layer_output_norm.weight",
        ),
    ),
)
