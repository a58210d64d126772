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
        said = "is not there" if value is None else f"is {value!r}, which cannot be"
        file = "GGUF" if self.gguf else "config.json"
        return CorruptError(f"{key} {said}", where=self.ckpt.path, hint=f"take the release's own {file} again")


def read_settings(ckpt: Checkpoint) -> Settings:
    """Raises CorruptError for values that cannot be, InputError for those the formulas here do not have."""
    stated, hp = Stated(ckpt), ckpt.hparams
    mixers = _MIXERS[hp.family]
    _require_formulas(stated, "latent" in mixers.values())
    _require_sizes(stated, set(mixers.values()) or {"attention"})
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
        _rope(stated, hp.qk_rope_head_dim or hp.rope_dim, latent),
        _routing(stated) if hp.n_experts else None,
        hp.family in _GATED,
        biases,
        qk_norm,
    )


_FIXED: Final = {"hidden_act": "silu", "use_sliding_window": False}
"""config.json keys that name another formula when they say anything else."""


_FIXED_LATENT: Final = {"attention_bias": False, "topk_method": "noaux_tc", "moe_layer_freq": 1}


def _require_formulas(stated: Stated, latent: bool) -> None:
    fixed = _FIXED | (_FIXED_LATENT if latent else {})
    for key, wanted in fixed.items():
        value = stated.value(key, "")
        if value is not None and value != wanted:
            raise InputError(
                f"config.json says {key} = {value!r}; the decoder has formulas for {wanted!r}",
                where=stated.ckpt.path,
                hint="mtptools verify without --parity checks what can be",
            )


def _require_sizes(stated: Stated, mixers: set[str]) -> None:
    """Heads must be there, and divide evenly."""
    hp = stated.ckpt.hparams
    shared = {"attention": ("heads", hp.n_heads, hp.n_kv_heads), "latent": ("heads", hp.n_heads, 1)}
    shared["deltanet"] = ("DeltaNet heads", hp.linear_v_heads, hp.linear_k_heads)
    for mixer in mixers:
        what, many, few = shared[mixer]
        if not few or not many or many % few:
            raise stated.refused(f"the number of {what}, {many} that share {few},", (many, few))


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


# Groups, groups used and scale where config.json leaves them out: defaults of transformers' configuration classes.
_ROUTING: Final = {"deepseek_v3": (8, 4, 2.5), "glm4_moe_lite": (1, 1, 1.8)}


def _routing(stated: Stated) -> Routing:
    hp = stated.ckpt.hparams
    if hp.family in _MOE_EVERYWHERE:
        told = hp.family == "qwen3next"  # the routers of Qwen3.5 normalize, whatever their config says
        routing = Routing("softmax", hp.n_experts_used, normalized=not told or stated.flag("norm_topk_prob", "", True))
        return _possible(stated, routing, hp.n_experts)
    if stated.gguf:
        # llama.cpp takes softmax for a DeepSeek file that does not say, which no head's family means.
        number = stated.count("", "expert_gating_func", 0 if hp.family == "deepseek_v3" else 2)
        scoring = _SCORING.get(number, str(number))
    else:
        scoring = stated.value("scoring_func", "") or "sigmoid"
    if scoring not in _SCORING.values():
        raise stated.refused("the router's scoring function", None if scoring == "0" else scoring)
    kind = "" if stated.gguf else str(stated.value("model_type", ""))
    groups, groups_used, scale = _ROUTING.get(kind, (1, 1, 1.0))
    routing = Routing(
        scoring,
        hp.n_experts_used,
        stated.count("n_group", "expert_group_count", groups) or _alone(stated, "n_group"),
        stated.count("topk_group", "expert_group_used_count", groups_used) or _alone(stated, "topk_group"),
        stated.flag("norm_topk_prob", "expert_weights_norm", not stated.gguf),  # llama.cpp: false where it is not said
        stated.number("routed_scaling_factor", "expert_weights_scale", scale)
        or _alone(stated, "routed_scaling_factor"),
    )
    return _possible(stated, routing, hp.n_experts)


def _alone(stated: Stated, key: str) -> int:
    """1, which is what 0 means in a GGUF (no groups, no scale). Raises CorruptError for a 0 in config.json."""
    if not stated.gguf:
        raise stated.refused(key, 0)
    return 1


def _possible(stated: Stated, routing: Routing, n_experts: int) -> Routing:
    """The routing itself. Raises CorruptError for one that no router can carry out."""
    groups, per_group = routing.groups, n_experts // routing.groups
    if n_experts % groups or (groups > 1 and per_group < 2):
        raise stated.refused(f"the number of groups {n_experts} experts are in", groups)
    if routing.groups_used > groups:
        raise stated.refused(f"the number of groups in use, of {groups},", routing.groups_used)
    if not 1 <= routing.used <= routing.groups_used * per_group:
        raise stated.refused(f"the number of experts per token, of {n_experts},", routing.used)
    return routing


def _rope(stated: Stated, dim: int, latent: bool) -> RopeSettings:
    theta = stated.ckpt.hparams.rope_theta
    if dim % 2 or dim < 2:
        raise stated.refused("the number of rotated values in a head, even and not 0,", dim)
    if theta <= 1:
        raise stated.refused("rope_theta, more than 1,", theta)
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
    factor = stated.number(f"{at}.factor", "rope.scaling.factor", 0.0)
    if factor <= 0:
        raise stated.refused(f"the factor of rotary scaling ({kind})", factor or None)
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
    if not 0 < yarn.slow <= yarn.fast:
        raise stated.refused("beta_slow and beta_fast of yarn, in this order and above 0,", (yarn.slow, yarn.fast))
    everywhere = stated.number(f"{at}.mscale_all_dim", "rope.scaling.yarn_log_multiplier", 0.0)
    if everywhere < 0:
        raise stated.refused("mscale_all_dim of yarn", everywhere)
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
