"""DeepSeek-V3, R1, V3.1, Kimi-K2 and GLM-4.7-Flash: multi-head latent attention, shared and routed experts."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import dense_ffn, globals_of, mla, moe, sandwich, v3_fusion
from mtptools.families.fields import MLA, SHARED_EXPERTS
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

TRUNK: Final = "^layers.{n}."
LAYER: Final = (*sandwich(TRUNK, second="ffn_norm.weight"), *mla(TRUNK))

FAMILY: Final = Family(
    name="deepseek_v3",
    title="DeepSeek-V3 / R1 / V3.1, Kimi-K2, GLM-4.7-Flash",
    gguf_arch="deepseek2",
    hf_types=("deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite"),
    hf_prefixes=("language_model.model.", "model."),
    hf_ignored=("vision_tower.", "mm_projector."),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    fields={**MLA, **SHARED_EXPERTS},
    layers="dense_first",
    mlx="drops",
    gguf_pre="deepseek-v3",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        recurrence="exact",
        evidence="order, tap and recycle: llama.cpp deepseek2.cpp graph, vLLM 0.33 deepseek_mtp, transformers 5.23 "
        "MtpModel; llama.cpp#24025 is quoted with a pre-norm tap. Position 0: vLLM zeroes it, SGLang and transformers "
        "do not. GLM-4.7-Flash: vLLM recycles before the norm, SGLang and llama.cpp after it",
    ),
    trunk={
        "all": globals_of(outputs=("lm_head.weight", "language_model.lm_head.weight")),
        "dense": (*LAYER, *dense_ffn(TRUNK)),
        "moe": (*LAYER, *moe(TRUNK)),
    },
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *mla("~"),
        *moe("~"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
