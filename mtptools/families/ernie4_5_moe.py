"""ERNIE-4.5 MoE: a dense layer of its own kind, no norm before the output matrix, one draft and no more."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import attention, dense_ffn, globals_of, matrix, norm, sandwich
from mtptools.families.fields import GQA
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"
BLOCK: Final = "~block.{d}."

FAMILY: Final = Family(
    name="ernie4_5_moe",
    title="ERNIE-4.5 MoE",
    gguf_arch="",
    gguf_head=False,
    hf_types=("ernie4_5_moe",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^mtp_",
    fields=GQA,
    mlx="drops",
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="none",
        mask_first=True,
        evidence="vLLM 0.33 ernie_mtp (asserts draft step 0; no norm after the block), SGLang 0.5.23 ernie4_eagle: "
        "they agree. llama.cpp's converter drops the head",
    ),
    trunk={"all": globals_of()},
    head=(
        *sandwich(BLOCK, second="ffn_norm.weight"),
        *attention(BLOCK, biases=True),
        matrix("attn_output.bias", (H,), f"{BLOCK}self_attn.o_proj.bias", kind="vector", required=False),
        *dense_ffn(BLOCK),
        matrix("nextn.eh_proj.weight", (H, f"2*{H}"), "~linear_proj.{d}.weight"),
        matrix("nextn.eh_proj.bias", (H,), "~linear_proj.{d}.bias", kind="vector", required=False),
        norm("nextn.enorm.weight", (H,), "~emb_norm.{d}.weight"),
        norm("nextn.hnorm.weight", (H,), "~hidden_norm.{d}.weight"),
    ),
)
