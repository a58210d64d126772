"""The decoder's own tables of Hugging Face names and values.

They share nothing with the converter's: if one of the two is wrong, they disagree and the goldens, made by other
people's code, say which. Sources: the module names of transformers 5.23 (`Qwen3_5*`, `Qwen3Next*`, `DeepseekV3*`,
`Glm4Moe*`, `Glm4MoeLite*`, `Qwen2*`); head names as vLLM 0.33 loads them (`qwen3_5_mtp`, `deepseek_mtp`,
`glm4_moe_mtp`, `mimo_mtp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mtptools.decoder.names_v4 import HF_EXPERT, HF_FUSION, HF_LAYER, HF_TOP

__all__ = ["HF_NAMES", "HfNames"]


@dataclass(frozen=True, slots=True)
class HfNames:
    """Names of one family.

    prefixes  what may stand before the trunk's names
    layer     roles of a layer, below `layers.N.`;  top  roles outside of layers;  output  whole names
    heads     what may stand before the head's names: {trunk} the trunk's prefix, {d} the MTP layer, {n} its number
              among all layers
    block     what stands between that and the names of the head's decoder layer
    fusion    roles of the head around its layer
    one_plus  norms whose factor is 1 + w
    expert    names of one expert's matrices
    """

    layer: Mapping[str, str]
    heads: tuple[str, ...]
    block: str
    fusion: Mapping[str, str]
    prefixes: tuple[str, ...] = ("model.language_model.", "language_model.model.", "model.", "language_model.", "")
    top: Mapping[str, str] = field(
        default_factory=lambda: {"embed": "embed_tokens.weight", "final_norm": "norm.weight"}
    )
    output: tuple[str, ...] = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
    one_plus: frozenset[str] = frozenset()
    expert: Mapping[str, str] = field(default_factory=lambda: {part: f"{part}_proj" for part in ("gate", "up", "down")})


_NORMS: Final = {"mixer_norm": "input_layernorm.weight", "ffn_norm": "post_attention_layernorm.weight"}
_ATTENTION: Final = {
    **{f"{part}": f"self_attn.{part[0]}_proj.weight" for part in ("query", "key", "value")},
    **{f"{part}_bias": f"self_attn.{part[0]}_proj.bias" for part in ("query", "key", "value")},
    "attention_out": "self_attn.o_proj.weight",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
}
_LATENT: Final = {
    "query": "self_attn.q_proj.weight",
    "query_down": "self_attn.q_a_proj.weight",
    "query_norm": "self_attn.q_a_layernorm.weight",
    "query_up": "self_attn.q_b_proj.weight",
    "latent_down": "self_attn.kv_a_proj_with_mqa.weight",
    "latent_norm": "self_attn.kv_a_layernorm.weight",
    "latent_up": "self_attn.kv_b_proj.weight",
    "key_up": "self_attn.embed_q.weight",  # MLX alone
    "value_up": "self_attn.unembed_out.weight",
    "attention_out": "self_attn.o_proj.weight",
}
_DELTA: Final = {
    "delta_qkv": "linear_attn.in_proj_qkv.weight",
    "delta_z": "linear_attn.in_proj_z.weight",
    "delta_b": "linear_attn.in_proj_b.weight",
    "delta_a": "linear_attn.in_proj_a.weight",
    "delta_qkvz": "linear_attn.in_proj_qkvz.weight",  # Qwen3-Next, by key head
    "delta_ba": "linear_attn.in_proj_ba.weight",
    "delta_conv": "linear_attn.conv1d.weight",
    "delta_dt": "linear_attn.dt_bias",
    "delta_decay": "linear_attn.A_log",
    "delta_norm": "linear_attn.norm.weight",
    "delta_out": "linear_attn.out_proj.weight",
}
_DENSE: Final = {"gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight"}
_MOE: Final = {
    "router": "mlp.gate.weight",
    "router_bias": "mlp.gate.e_score_correction_bias",
    "experts": "mlp.experts.",
    "stacked_experts": "mlp.switch_mlp.",  # MLX
}


def _shared(name: str) -> dict[str, str]:
    return {f"shared_{part}": f"mlp.{name}.{part}_proj.weight" for part in ("gate", "up", "down")}


_QWEN: Final = HfNames(
    layer={
        **_NORMS,
        **_ATTENTION,
        **_DELTA,
        **_DENSE,
        **_MOE,
        **_shared("shared_expert"),
        "switch": "mlp.shared_expert_gate.weight",
    },
    heads=("mtp.", "model.mtp.", "model.language_model.mtp.", "language_model.mtp."),
    block="layers.{d}.",
    fusion={
        "fuse": "fc.weight",
        "embed_norm": "pre_fc_norm_embedding.weight",
        "hidden_norm": "pre_fc_norm_hidden.weight",
        "head_norm": "norm.weight",
        "head_embed": "embed_tokens.weight",
        "head_output": "shared_head.weight",
    },
    one_plus=frozenset(
        ("final_norm", "mixer_norm", "ffn_norm", "query_norm", "key_norm", "embed_norm", "hidden_norm", "head_norm")
    ),
)

_V3_FUSION: Final = {
    "fuse": "eh_proj.weight",
    "embed_norm": "enorm.weight",
    "hidden_norm": "hnorm.weight",
    "head_norm": "shared_head.norm.weight",
    "head_embed": "embed_tokens.weight",
    "head_output": "shared_head.head.weight",
}

HF_NAMES: Final[Mapping[str, HfNames]] = {
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
    "qwen3next": _QWEN,
    "glm4moe": HfNames(
        layer={**_NORMS, **_ATTENTION, **_DENSE, **_MOE, **_shared("shared_experts")},
        heads=("{trunk}layers.{n}.",),
        block="",
        fusion=_V3_FUSION,
    ),
    "deepseek_v3": HfNames(
        layer={**_NORMS, **_LATENT, **_DENSE, **_MOE, **_shared("shared_experts")},
        heads=("{trunk}layers.{n}.",),
        block="",
        fusion=_V3_FUSION,
    ),
    "mimo": HfNames(
        layer={**_NORMS, **_ATTENTION, **_DENSE},
        heads=("{trunk}mtp_layers.{d}.",),
        block="",
        fusion={
            "fuse": "input_proj.weight",
            "embed_norm": "token_layernorm.weight",
            "hidden_norm": "hidden_layernorm.weight",
            "head_norm": "final_layernorm.weight",
        },
    ),
    "deepseek4": HfNames(
        layer=HF_LAYER,
        heads=("mtp.{d}.", "model.mtp.{d}."),
        block="",
        fusion=HF_FUSION,
        prefixes=("", "model."),
        top=HF_TOP,
        output=("head.weight", "model.head.weight"),
        expert=HF_EXPERT,
    ),
}
