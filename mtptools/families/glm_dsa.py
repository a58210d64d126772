"""GLM-5, 5.1 and 5.2: DeepSeek-V3.2's layers; from 5.2 on some share the indexer of an earlier one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families import deepseek_v32
from mtptools.families.blocks import dense_ffn, dsa_indexer, globals_of, mla, moe, sandwich, v3_fusion

__all__ = ["FAMILY"]

TRUNK: Final = "^layers.{n}."
LAYER: Final = (*sandwich(TRUNK, second="ffn_norm.weight"), *mla(TRUNK), *dsa_indexer(TRUNK, required=False))

FAMILY: Final = replace(
    deepseek_v32.FAMILY,
    name="glm_dsa",
    title="GLM-5 / 5.1 / 5.2",
    gguf_arch="glm-dsa",
    hf_types=("glm_moe_dsa",),
    mlx="drafts",
    wiring=replace(
        deepseek_v32.FAMILY.wiring,
        evidence="vLLM 0.33 deepseek_mtp and SGLang 0.5.23 deepseek_nextn, which run DeepSeek-V3.2's head; llama.cpp "
        "glm-dsa.cpp (attention dense, indexer optional); vLLM#45895 and #47448: recycle after the norm. "
        "llama.cpp#24025 is quoted with a pre-norm tap. Position 0: vLLM zeroes it, SGLang does not",
    ),
    trunk={
        "all": globals_of(),
        "dense": (*LAYER, *dense_ffn(TRUNK)),
        "moe": (*LAYER, *moe(TRUNK)),
    },
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *mla("~"),
        *dsa_indexer("~", required=False),
        *moe("~"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
