"""openPangu-Ultra-MoE: latent attention and experts between four norms, fusion as in DeepSeek-V3."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mtptools.families.blocks import globals_of, mla, moe, norm, v3_fusion
from mtptools.families.fields import MLA, SHARED_EXPERTS
from mtptools.families.spec import Family, Wiring

__all__ = ["FAMILY"]

H: Final = "hidden_size"

FAMILY: Final = Family(
    name="pangu_ultra_moe",
    title="openPangu-Ultra-MoE",
    gguf_arch="",
    gguf_head=False,
    hf_types=("pangu_ultra_moe",),
    hf_prefixes=("model.",),
    hf_depth=("num_nextn_predict_layers",),
    hf_head="^layers.{n}.",
    # Later models with hyper-connections or attention sinks have roles that are not in this table.
    expected={"sandwich_norm": True, "use_mhc": False, "param_sink_number": 0},
    fields={**MLA, **SHARED_EXPERTS},
    wiring=Wiring(
        concat="eh",
        tap="post",
        recycle="post",
        mask_first=True,
        evidence="vLLM 0.33 openpangu_mtp alone, which runs DeepSeek's head around openPangu's layer; no list of a "
        "released file was seen",
    ),
    trunk={"all": globals_of()},
    head=(
        norm("attn_norm.weight", (H,), "~input_layernorm.weight"),
        norm("post_attention_norm.weight", (H,), "~post_attention_layernorm.weight"),
        norm("ffn_norm.weight", (H,), "~pre_mlp_layernorm.weight"),
        norm("post_ffw_norm.weight", (H,), "~post_mlp_layernorm.weight"),
        *mla("~"),
        # The router has a bias only where the configuration enables it.
        *(replace(role, required=role.name != "exp_probs_b.bias") for role in moe("~")),
        *v3_fusion("~", embed="~embed_tokens.weight", output="~shared_head.head.weight"),
    ),
)
