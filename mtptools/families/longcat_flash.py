"""LongCat-Flash: latent attention and a dense feed-forward part; fusion norms one name deeper than elsewhere."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import dense_ffn, fusion, globals_of, mla, private, sandwich
from mtptools.families.fields import MLA
from mtptools.families.spec import Family, Field, Wiring

__all__ = ["FAMILY"]

LAYER: Final = "~layers.{d}."

FAMILY: Final = Family(
    name="longcat_flash",
    title="LongCat-Flash",
    gguf_arch="",
    gguf_head=False,
    hf_types=("longcat_flash",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^mtp.",
    fields={**MLA, "intermediate_size": Field(("ffn_hidden_size", "intermediate_size"), (), 0)},
    mlx="drops",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=False,
        evidence="vLLM 0.33 longcat_flash_mtp, SGLang 0.5.23 longcat_flash_nextn. vLLM multiplies q_a_norm and "
        "kv_a_norm by sqrt(hidden / rank) when it loads them, as the trunk's: the files hold them without. llama.cpp "
        "has no architecture for it",
    ),
    trunk={"all": globals_of()},
    head=(
        *sandwich(LAYER, second="ffn_norm.weight"),
        *mla(LAYER),
        *dense_ffn(f"{LAYER}transformer_layer."),
        *fusion(f"{LAYER}eh_proj.weight", f"{LAYER}enorm.m.weight", f"{LAYER}hnorm.m.weight", "~norm.weight"),
        *private("~embed_tokens.weight"),
    ),
)
