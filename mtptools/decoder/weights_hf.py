"""The decoder's own map of Hugging Face names and values.

It shares nothing with the converter's tables: if one of the two is wrong, they disagree and the goldens, made
by other people's code, say which. Source: transformers 5.23, `Qwen3_5*` and `Qwen3_5Moe*` modules; head names
as vLLM 0.33 `qwen3_5_mtp` loads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.parts import Part, Scope
from mtptools.errors import MissingRoleError
from mtptools.tensors import Tensor

__all__ = ["HfWeights"]

Array = NDArray[np.float32]

_TRUNK_PREFIXES: Final = ("model.language_model.", "language_model.model.", "model.", "language_model.", "")
_HEAD_PREFIXES: Final = ("mtp.", "model.mtp.", "model.language_model.mtp.", "language_model.mtp.")

_TOP: Final = {"embed": "embed_tokens.weight", "final_norm": "norm.weight"}
_OUTPUT: Final = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")

_LAYER: Final = {
    "mixer_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    # gated attention
    "query_gate": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "attention_out": "self_attn.o_proj.weight",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    # Gated DeltaNet
    "delta_qkv": "linear_attn.in_proj_qkv.weight",
    "delta_z": "linear_attn.in_proj_z.weight",
    "delta_b": "linear_attn.in_proj_b.weight",
    "delta_a": "linear_attn.in_proj_a.weight",
    "delta_conv": "linear_attn.conv1d.weight",
    "delta_dt": "linear_attn.dt_bias",
    "delta_decay": "linear_attn.A_log",
    "delta_norm": "linear_attn.norm.weight",
    "delta_out": "linear_attn.out_proj.weight",
    # feed-forward
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "router": "mlp.gate.weight",
    "switch": "mlp.shared_expert_gate.weight",
    "shared_gate": "mlp.shared_expert.gate_proj.weight",
    "shared_up": "mlp.shared_expert.up_proj.weight",
    "shared_down": "mlp.shared_expert.down_proj.weight",
}

_FUSION: Final = {
    "fuse": "fc.weight",
    "embed_norm": "pre_fc_norm_embedding.weight",
    "hidden_norm": "pre_fc_norm_hidden.weight",
    "head_norm": "norm.weight",
    "head_embed": "embed_tokens.weight",
    "head_output": "shared_head.weight",
}

_ONE: Final = np.float32(1)


def _one_plus(w: Array) -> Array:
    return w + _ONE


def _minus_exp(w: Array) -> Array:
    return -np.exp(w)


# RMSNorm multiplies by 1 + w, except the DeltaNet's own, which multiplies by w.
_VALUES: Final = {
    **dict.fromkeys(
        ("final_norm", "mixer_norm", "mlp_norm", "query_norm", "key_norm", "embed_norm", "hidden_norm", "head_norm"),
        _one_plus,
    ),
    "delta_decay": _minus_exp,
}


class HfWeights:
    def __init__(self, tensors: Mapping[str, Tensor], where: object) -> None:
        self.tensors = tensors
        self.where = where
        self.used: set[str] = set()
        marks = (_TOP["embed"], f"layers.0.{_LAYER['mixer_norm']}")
        found = (p for p in _TRUNK_PREFIXES if any(p + mark in tensors for mark in marks))
        self.trunk_prefix = next(found, "model.")
        self.head_prefix = next((p for p in _HEAD_PREFIXES if any(name.startswith(p) for name in tensors)), "mtp.")
        layer = re.compile(re.escape(self.head_prefix) + r"layers\.(\d+)\.")
        layers = {int(m[1]) for name in tensors if (m := layer.match(name))}
        some = any(name.startswith(self.head_prefix) for name in tensors)
        self.head_depth = max(layers) + 1 if layers else int(some)

    def _names(self, scope: Scope, role: str) -> tuple[str, ...]:
        kind, number = scope
        if role == "output":
            return _OUTPUT
        if kind == "top":
            return (self.trunk_prefix + _TOP[role],)
        if role in _FUSION:
            return (self.head_prefix + _FUSION[role],)
        return (f"{self._layer(kind, number)}{_LAYER[role]}",)

    def _layer(self, kind: str, number: int) -> str:
        return f"{self.trunk_prefix if kind == 'layer' else self.head_prefix}layers.{number}."

    def _find(self, names: tuple[str, ...]) -> Tensor:
        for name in names:
            if name in self.tensors:
                self.used.add(name)
                return self.tensors[name]
        raise MissingRoleError(
            f"tensor {names[0]} is not there", where=self.where, hint=f"mtptools validate {self.where}"
        )

    def has(self, scope: Scope, role: str) -> bool:
        return any(name in self.tensors for name in self._names(scope, role))

    def part(self, scope: Scope, role: str) -> Part:
        part = Part.whole(self._find(self._names(scope, role)))
        value = _VALUES.get(role)
        return part if value is None else Part(part.tensor, part.start, part.stop, value=value)

    def leftover(self, kind: str) -> list[str]:
        prefix = f"{self.trunk_prefix}layers." if kind == "layer" else self.head_prefix
        return [name for name in self.tensors if name.startswith(prefix) and name not in self.used]

    def experts(self, scope: Scope, role: str) -> list[Part]:
        """Fused (`experts.gate_up_proj` [n, 2F, hidden]: 3.6) or one by one (`experts.{e}.gate_proj`: 3.5)."""
        prefix = f"{self._layer(*scope)}mlp.experts."
        fused = {"expert_gate_up": "gate_up_proj", "expert_down": "down_proj"}[role]
        for name in (prefix + fused, f"{prefix}{fused}.weight"):
            if name in self.tensors:
                return [Part.whole(self._find((name,)))]
        kinds = {"expert_gate_up": ("gate_proj", "up_proj"), "expert_down": ("down_proj",)}[role]
        parts: list[Part] = []
        expert = 0
        while f"{prefix}{expert}.{kinds[0]}.weight" in self.tensors or expert == 0:
            parts += [Part.whole(self._find((f"{prefix}{expert}.{kind}.weight",))) for kind in kinds]
            expert += 1
        return parts
