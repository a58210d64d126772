"""GLM-4.5, 4.6 and 4.7: grouped-query attention with biases, shared and routed experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families.blocks import attention, dense_ffn, globals_of, moe, sandwich, v3_fusion
from mtptools.families.fields import GQA, SHARED_EXPERTS
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

TRUNK: Final = "^layers.{n}."
LAYER: Final = (*sandwich(TRUNK), *attention(TRUNK, biases=True, norms="plain"))

FAMILY: Final = Family(
    name="glm4moe",
    title="GLM-4.5 / 4.6 / 4.7 MoE",
    gguf_arch="glm4moe",
    hf_types=("glm4_moe", "glm4v_moe", "glm4v_moe_text"),
    hf_prefixes=("model.language_model.", "model."),
    hf_ignored=("model.visual.", "visual."),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    fields={**GQA, **SHARED_EXPERTS, "partial_rotary": replace(GQA["partial_rotary"], default=0.5)},
    layers="dense_first",
    mlx="drops",
    gguf_pre="glm4",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        recurrence="exact",
        evidence="order, tap and recycle: llama.cpp glm4-moe.cpp graph, transformers 5.23 MtpModel; vLLM 0.33 "
        "glm4_moe_mtp recycles before the norm and zeroes position 0, SGLang and transformers do neither; "
        "llama.cpp#24025 is quoted with a pre-norm tap",
    ),
    trunk={
        "all": globals_of(),
        "dense": (*LAYER, *dense_ffn(TRUNK)),
        "moe": (*LAYER, *moe(TRUNK)),
    },
    head=(
        *sandwich("~"),
        *attention("~", biases=True, norms="plain"),
        *moe("~"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
