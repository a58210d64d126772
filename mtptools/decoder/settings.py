"""What the formulas of a model need to know beyond sizes: kinds of layers, rotary positions, routing.

Read from config.json or GGUF metadata by the decoder itself: a second reader, so that a mistake in the tables of
`mtptools.families` shows. Sources: transformers 5.23 (`modeling_rope_utils`, `DeepseekV3TopkRouter`,
`Qwen3NextTopKRouter`) and llama.cpp's `src/llama-model.cpp`, `src/models/deepseek2.cpp`, `glm4-moe.cpp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import CorruptError, InputError
from mtptools.hparams import lookup, text_config

__all__ = ["LayerKind", "RopeSettings", "Routing", "Settings", "Stated", "Yarn", "read_settings"]


@dataclass(frozen=True, slots=True)
class LayerKind:
    """mixer: "attention", "latent" or "deltanet"; ffn: "dense" or "moe"."""

    mixer: str
    ffn: str


@dataclass(frozen=True, slots=True)
class Yarn:
    """Frequencies between `slow` and `fast` turns over `original` positions go over from scaled to unscaled."""

    factor: float
    original: int
    fast: float = 32.0
    slow: float = 1.0


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """dim values of each head turn; pairs "halves" (i, i + dim/2) or "adjacent" (2i, 2i + 1).

    divide     positions are divided by it (linear scaling); yarn  or scaled by frequency
    magnitude  of the rotated values;  scores  what attention scores are multiplied by on top of 1/sqrt(head size)
    """

    theta: float
    dim: int
    pairs: str = "halves"
    divide: float = 1.0
    yarn: Yarn | None = None
    magnitude: float = 1.0
    scores: float = 1.0


@dataclass(frozen=True, slots=True)
class Routing:
    """How experts are chosen and weighted.

    scoring     "softmax", "sigmoid" or "sqrtsoftplus" of the router's logits
    used        experts per token; of `groups` equal groups only the `groups_used` best are looked at
    normalized  the weights of the chosen ones are made to sum to 1; then all are multiplied by `scale`
    limit       gate above it, and up beyond +- it, are cut; 0 for no limit
    """

    scoring: str
    used: int
    groups: int = 1
    groups_used: int = 1
    normalized: bool = True
    scale: float = 1.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """layers: one per trunk layer; head: of every MTP layer.

    gate      q_proj also holds an output gate
    biases, qk_norm  whether q, k, v have biases, and q, k a norm; None where only the tensors tell (GGUF)
    """

    layers: tuple[LayerKind, ...]
    head: LayerKind
    rope: RopeSettings
    routing: Routing | None = None
    gate: bool = False
    biases: bool | None = False
    qk_norm: bool | None = False


_QWEN: Final = {"linear": "deltanet", "full": "attention"}
_MIXERS: Final = {
    "qwen35": _QWEN,
    "qwen35moe": _QWEN,
    "qwen3next": _QWEN,
    "glm4moe": {"dense": "attention", "moe": "attention"},
    "deepseek_v3": {"dense": "latent", "moe": "latent"},
    "mimo": {},
    "deepseek4": {},  # its builder knows, see `settings_v4.py`
}
"""Family -> layer type of `HParams.layer_types` -> mixer; a family without layer types has attention everywhere."""

_DENSE_HEAD: Final = ("qwen35", "mimo")
_MOE_EVERYWHERE: Final = ("qwen35moe", "qwen3next")
_GATED: Final = ("qwen35", "qwen35moe", "qwen3next")


class Stated:
    """Values of one checkpoint, by dotted path in config.json or by key in GGUF metadata."""

    def __init__(self, ckpt: Checkpoint) -> None:
        self.ckpt = ckpt
        self.gguf = ckpt.dialect == "gguf"
        self.arch = str(ckpt.metadata.get("general.architecture", "")) if self.gguf else ""

    def value(self, hf: str, gguf: str) -> Any:
        if self.gguf:
            return self.ckpt.metadata.get(f"{self.arch}.{gguf}") if gguf else None
        return lookup(text_config(self.ckpt.config, self.ckpt.path), hf, self.ckpt.path) if hf else None

    def number(self, hf: str, gguf: str, default: float) -> float:
        value = self.value(hf, gguf)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e12:
            raise self.refused(gguf if self.gguf else hf, value)
        return float(value)

    def count(self, hf: str, gguf: str, default: int) -> int:
        value = self.number(hf, gguf, default)
        if value < 0 or value != int(value):
            raise self.refused(gguf if self.gguf else hf, value)
        return int(value)

    def flag(self, hf: str, gguf: str, default: bool) -> bool:
        value = self.value(hf, gguf)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refused(gguf if self.gguf else hf, value)
        return value

    def refused(self, key: str, value: object) -> CorruptError:
        return CorruptError(
            f"{key} is {value!r}, which cannot be", where=self.ckpt.path, hint="take the release's own file again"
        )


def read_settings(ckpt: Checkpoint) -> Settings:
    """Raises CorruptError for values that cannot be, InputError for those the formulas here do not have."""
    stated, hp = Stated(ckpt), ckpt.hparams
    mixers = _MIXERS[hp.family]
    layers = tuple(
        LayerKind(mixers.get(kind, "attention"), "moe" if kind == "moe" or hp.family in _MOE_EVERYWHERE else "dense")
        for kind in hp.layer_types
    )
    latent = "latent" in mixers.values()
    head = LayerKind("latent" if latent else "attention", "dense" if hp.family in _DENSE_HEAD else "moe")
    biases, qk_norm = _extras(hp.family, stated)
    return Settings(
        layers,
        head,
        _rope(stated, hp.qk_rope_head_dim if latent else hp.rope_dim, latent),
        _routing(stated, hp.n_experts_used) if hp.n_experts else None,
        hp.family in _GATED,
        biases,
        qk_norm,
    )


def _extras(family: str, stated: Stated) -> tuple[bool | None, bool | None]:
    """(biases, qk_norm)"""
    if family in _GATED:
        return False, True
    if family == "mimo":  # a Qwen2 trunk: its attention has biases whatever is said
        return True, False
    if stated.gguf:
        return None, None
    return stated.flag("attention_bias", "", False), stated.flag("use_qk_norm", "", False)


_SCORING: Final = {1: "softmax", 2: "sigmoid", 4: "sqrtsoftplus"}  # llama.cpp's expert_gating_func


def _routing(stated: Stated, used: int) -> Routing:
    family = stated.ckpt.hparams.family
    if family in _MOE_EVERYWHERE:
        return Routing("softmax", used, normalized=stated.flag("norm_topk_prob", "", True))
    if stated.gguf:
        number = stated.count("", "expert_gating_func", 2)
        scoring = _SCORING.get(number, str(number))
    else:
        scoring = stated.value("scoring_func", "") or "sigmoid"
    if scoring not in _SCORING.values():
        raise stated.refused("the router's scoring function", scoring)
    return Routing(
        scoring,
        used,
        max(1, stated.count("n_group", "expert_group_count", 1)),
        max(1, stated.count("topk_group", "expert_group_used_count", 1)),
        stated.flag("norm_topk_prob", "expert_weights_norm", True),
        stated.number("routed_scaling_factor", "expert_weights_scale", 1.0),
    )


def _rope(stated: Stated, dim: int, latent: bool) -> RopeSettings:
    theta = stated.ckpt.hparams.rope_theta
    # Stored as pairs of neighbours in DeepSeek's releases and in GGUF; `rope_interleave` says otherwise in HF alone.
    pairs = "adjacent" if latent and stated.flag("rope_interleave", "", True) else "halves"
    if stated.gguf:
        kind, at = stated.value("", "rope.scaling.type"), ""
    else:
        text = text_config(stated.ckpt.config)
        at = "rope_parameters" if text.get("rope_parameters") else "rope_scaling"
        rope = text.get(at) or {}
        kind = rope.get("rope_type", rope.get("type")) if isinstance(rope, dict) else repr(rope)
    if kind in (None, "none", "default", "mrope"):
        return RopeSettings(theta, dim, pairs)
    factor = stated.number(f"{at}.factor", "rope.scaling.factor", 1.0)
    if factor <= 0:
        raise stated.refused("the factor of rotary scaling", factor)
    if kind == "linear":
        return RopeSettings(theta, dim, pairs, divide=factor)
    if kind != "yarn":
        raise InputError(
            f"rotary positions are scaled ({kind}); the decoder knows plain, linear and yarn",
            where=stated.ckpt.path,
            hint="verify the release without that setting: the weights are the same",
        )
    yarn = Yarn(
        factor,
        stated.count(f"{at}.original_max_position_embeddings", "rope.scaling.original_context_length", 0),
        stated.number(f"{at}.beta_fast", "rope.scaling.yarn_beta_fast", 32.0),
        stated.number(f"{at}.beta_slow", "rope.scaling.yarn_beta_slow", 1.0),
    )
    if not yarn.original:
        raise stated.refused("the original context length of yarn", yarn.original)
    everywhere = stated.number(f"{at}.mscale_all_dim", "rope.scaling.yarn_log_multiplier", 0.0)
    if stated.gguf:
        everywhere *= 10  # the converter writes a tenth of it for deepseek2
    mscale = everywhere if stated.gguf else stated.number(f"{at}.mscale", "", 0.0)
    both = mscale and everywhere
    magnitude = _mscale(factor, mscale) / _mscale(factor, everywhere) if both else _mscale(factor, 1.0)
    magnitude = stated.number(f"{at}.attention_factor", "", magnitude)
    scores = _mscale(factor, everywhere) ** 2 if latent and everywhere else 1.0
    return RopeSettings(theta, dim, pairs, yarn=yarn, magnitude=magnitude, scores=scores)


def _mscale(factor: float, by: float) -> float:
    """How much yarn raises attention for a context `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * by * log(factor) + 1.0
