"""DeepSeek-V3.2: DeepSeek-V3 with a sparse attention's indexer in every layer, the head's too."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import dense_ffn, dsa_indexer, globals_of, mla, moe, sandwich, v3_fusion
from mtptools.families.fields import INDEXER, MLA, SHARED_EXPERTS
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

TRUNK: Final = "^layers.{n}."
LAYER: Final = (*sandwich(TRUNK, second="ffn_norm.weight"), *mla(TRUNK), *dsa_indexer(TRUNK))

FAMILY: Final = Family(
    name="deepseek_v32",
    title="DeepSeek-V3.2",
    gguf_arch="deepseek32",
    hf_types=("deepseek_v32",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    fields={**MLA, **SHARED_EXPERTS, **INDEXER},
    layers="dense_first",
    mlx="drops",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        evidence="vLLM 0.33 deepseek_mtp, SGLang 0.5.23 deepseek_nextn, llama.cpp deepseek32.cpp (runs the head's "
        "attention dense, and wants its indexer all the same); vLLM#45895 and #47448: recycle after the norm. "
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
        *dsa_indexer("~"),
        *moe("~"),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
