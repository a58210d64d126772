"""Mellum-2: sliding attention and routed experts; Qwen's names for the head, plain norms."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import attention, experts, globals_of, matrix, qwen_fusion, sandwich
from mtptools.families.fields import GQA, MOE
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

LAYER: Final = "~layers.{d}."

FAMILY: Final = Family(
    name="mellum",
    title="Mellum-2",
    # llama.cpp has the trunk alone: a block too many does not load.
    gguf_arch="",
    gguf_head=False,
    hf_types=("mellum",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers", "num_mtp_layers"),
    hf_head="mtp.",
    expected={"mtp_mlp_layer_types": ["sparse"]},
    fields={**GQA, **MOE},
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=False,
        evidence="transformers 5.23 MtpModel, run on a tiny model (drafts equal a full recomputation); no runtime with "
        "kernels of its own was read",
    ),
    trunk={"all": globals_of()},
    head=(
        *sandwich(LAYER, second="ffn_norm.weight"),
        *attention(LAYER, norms="plain"),
        matrix("ffn_gate_inp.weight", ("n_experts", "hidden_size"), f"{LAYER}mlp.gate.weight", kind="router"),
        *experts(f"{LAYER}mlp.", single=True),
        *qwen_fusion("plain"),
    ),
)
