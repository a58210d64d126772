"""K-EXAONE (EXAONE-MoE): Qwen's names for the head, plain norms, and a dense block under a sparse trunk."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import attention, dense_ffn, globals_of, qwen_fusion, sandwich
from mtptools.families.fields import GQA, MOE
from mtptools.families.spec import Family, Field, Wiring

__all__ = ["FAMILY"]

LAYER: Final = "~layers.{d}."

FAMILY: Final = Family(
    name="exaone_moe",
    title="K-EXAONE",
    gguf_arch="exaone-moe",
    gguf_head=False,
    hf_types=("exaone_moe",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="mtp.",
    fields={
        **GQA,
        **MOE,
        "n_shared_experts": Field(("num_shared_experts", "n_shared_experts"), ("expert_shared_count",), 0),
        "first_dense": Field(
            ("first_k_dense_replace", "first_last_k_dense_replace"), ("leading_dense_block_count",), 0
        ),
    },
    mlx="drops",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=False,
        evidence="vLLM 0.33 and SGLang 0.5.23 exaone_moe_mtp (norms plain, unlike Qwen's; block of the kind of layer "
        "0). llama.cpp exaone-moe.cpp loads the head, dense as well, and has no graph",
    ),
    trunk={"all": globals_of()},
    head=(
        *sandwich(LAYER, second="ffn_norm.weight"),
        *attention(LAYER, norms="plain"),
        *dense_ffn(LAYER),
        *qwen_fusion("plain"),
    ),
)
