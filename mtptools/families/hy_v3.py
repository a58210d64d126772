"""Hunyuan Hy3 (HY-V3): grouped-query attention, routed and shared experts, a final norm in the head's own layer."""

from __future__ import annotations

from typing import Final

from mtptools.families.blocks import (
    attention,
    experts,
    fusion,
    globals_of,
    matrix,
    private,
    sandwich,
    shared_expert,
)
from mtptools.families.fields import GQA, SHARED_EXPERTS
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["FAMILY"]

FAMILY: Final = Family(
    name="hy_v3",
    title="Hunyuan Hy3",
    gguf_arch="hy_v3",
    hf_types=("hy_v3",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    fields={
        **GQA,
        **SHARED_EXPERTS,
        "n_shared_experts": Field(("num_shared_experts", "n_shared_experts"), ("expert_shared_count",), 1),
    },
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        evidence="order, tap, recycle: vLLM 0.33 hy_v3_mtp, SGLang 0.5.23 hunyuan_v3_nextn, llama.cpp hy-v3.cpp: they "
        "agree. Position 0: vLLM zeroes it, SGLang and llama.cpp do not. A shared_head in the file is skipped by vLLM",
    ),
    trunk={"all": globals_of()},
    head=(
        *sandwich("~", second="ffn_norm.weight"),
        *attention("~", norms="plain"),
        matrix("ffn_gate_inp.weight", ("n_experts", "hidden_size"), "~mlp.router.gate.weight", kind="router"),
        # Without a suffix here, unlike elsewhere in llama.cpp.
        Role("exp_probs_b", ("n_experts",), (Source("~mlp.expert_bias"),), "vector", f32=True),
        *experts("~mlp.", single=True),
        *shared_expert("~mlp.shared_mlp.", "n_shared_experts*moe_intermediate_size"),
        *fusion("~eh_proj.weight", "~enorm.weight", "~hnorm.weight", "~final_layernorm.weight"),
        *private(),
    ),
)
