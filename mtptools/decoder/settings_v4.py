"""What the formulas of DeepSeek-V4 need to know beyond sizes, from config.json or GGUF metadata.

Sources: transformers 5.23, `DeepseekV4Config`; llama.cpp's `src/models/deepseek4.cpp` and `conversion/deepseek.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.settings import RopeSettings, Stated, Yarn
from mtptools.errors import InputError

__all__ = ["CSA", "HCA", "HyperSettings", "V4Settings", "read_v4"]

CSA: Final = 4
HCA: Final = 128
"""Tokens of a window in compressed sparse and heavily compressed attention; 0 stands for neither."""

_KINDS: Final = {"sliding_attention": 0, "compressed_sparse_attention": CSA, "heavily_compressed_attention": HCA}


@dataclass(frozen=True, slots=True)
class HyperSettings:
    """streams; rounds of Sinkhorn's normalization; eps keeps its divisors from zero, norm_eps those of norms."""

    streams: int
    rounds: int
    eps: float
    norm_eps: float


@dataclass(frozen=True, slots=True)
class V4Settings:
    """ratios   per trunk layer 0, CSA or HCA; the head has 0
    hashed      the first so many layers look their experts up by token
    window      keys a query sees as they are, its own among them
    near, far   rotary positions of layers without, and with, compressed keys
    limit       gates above it, and the values they gate beyond +- it, are cut
    """

    ratios: tuple[int, ...]
    hashed: int
    hyper: HyperSettings
    window: int
    near: RopeSettings
    far: RopeSettings
    index_heads: int
    index_dim: int
    index_top: int
    limit: float


def read_v4(ckpt: Checkpoint) -> V4Settings:
    """Raises CorruptError for values that cannot be, InputError for those the formulas here do not have."""
    stated, hp = Stated(ckpt), ckpt.hparams
    if hp.hc_mult < 2:
        raise stated.refused("hc_mult, the number of streams,", hp.hc_mult)
    if not hp.o_groups or hp.n_heads % hp.o_groups:
        raise stated.refused(f"o_groups, of {hp.n_heads} heads,", hp.o_groups)
    if hp.qk_rope_head_dim % 2 or not 0 < hp.qk_rope_head_dim <= hp.head_dim:
        raise stated.refused(f"the number of rotated values in a head of {hp.head_dim}", hp.qk_rope_head_dim)
    hyper = HyperSettings(
        hp.hc_mult,
        stated.count("hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations", 20),
        stated.number("hc_eps", "hyper_connection.epsilon", 1e-6),
        hp.norm_eps,
    )
    return V4Settings(
        _ratios(stated, hp.n_layers),
        _hashed(stated),
        hyper,
        stated.count("sliding_window", "attention.sliding_window", 128),
        RopeSettings(stated.number("rope_theta", "rope.freq_base", 1e4), hp.qk_rope_head_dim, "adjacent"),
        _far(stated, hp.qk_rope_head_dim),
        stated.count("index_n_heads", "attention.indexer.head_count", 64),
        stated.count("index_head_dim", "attention.indexer.key_length", 128),
        stated.count("index_topk", "attention.indexer.top_k", 512),
        _limit(stated),
    )


def _ratios(stated: Stated, n_layers: int) -> tuple[int, ...]:
    value = stated.value("compress_ratios", "attention.compress_ratios")
    if value is None and isinstance(kinds := stated.value("layer_types", ""), list):
        value = [_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
    if not isinstance(value, list) or len(value) < n_layers:
        raise stated.refused("compress_ratios, one for each layer,", value)
    if any(ratio not in (0, CSA, HCA) for ratio in value[:n_layers]):
        raise _unknown(stated, f"compress_ratios has {value[:n_layers]}; the decoder knows 0, {CSA} and {HCA}")
    if any(value[n_layers:]):
        raise _unknown(stated, f"compress_ratios gives the head {value[n_layers:]}; the decoder knows 0 there")
    rates = stated.value("compress_rates", "") or {}
    if not isinstance(rates, Mapping):
        raise stated.refused("compress_rates", rates)
    if any(rates.get(kind, ratio) != ratio for kind, ratio in _KINDS.items()):
        raise _unknown(stated, f"compress_rates is {rates}; the decoder knows windows of {CSA} and {HCA}")
    return tuple(value[:n_layers])


def _hashed(stated: Stated) -> int:
    kinds = stated.value("mlp_layer_types", "")
    if stated.value("num_hash_layers", "") is None and isinstance(kinds, list):
        return kinds.count("hash_moe")
    return stated.count("num_hash_layers", "hash_layer_count", 3)


def _limit(stated: Stated) -> float:
    """GGUF has one for each layer, and again for shared experts; they are written equal."""
    value = stated.value("", "swiglu_clamp_exp")
    if not isinstance(value, list):
        return stated.number("swiglu_limit", "swiglu_clamp_exp", 0.0)
    every = {*value, *(stated.value("", "swiglu_clamp_shexp") or ())}
    if len(every) != 1:
        raise _unknown(stated, "swiglu_clamp_exp differs between layers")
    return float(every.pop())


def _far(stated: Stated, dim: int) -> RopeSettings:
    """Scaled by yarn, without the factor that yarn puts on magnitudes elsewhere."""
    theta = stated.number("compress_rope_theta", "attention.compress_rope_freq_base", 160000.0)
    nested = stated.value("rope_parameters.compress", "") is not None
    at = "rope_parameters.compress" if nested else "rope_scaling"
    kind: Any = stated.value(f"{at}.rope_type", "rope.scaling.type") or stated.value(f"{at}.type", "")
    if kind in (None, "none", "default"):
        return RopeSettings(theta, dim, "adjacent")
    if kind != "yarn":
        raise _unknown(stated, f"rotary positions are scaled ({kind}); the decoder knows plain ones and yarn")
    yarn = Yarn(
        stated.number(f"{at}.factor", "rope.scaling.factor", 1.0),
        stated.count(f"{at}.original_max_position_embeddings", "rope.scaling.original_context_length", 0),
        stated.number(f"{at}.beta_fast", "rope.scaling.yarn_beta_fast", 32.0),
        stated.number(f"{at}.beta_slow", "rope.scaling.yarn_beta_slow", 1.0),
    )
    if yarn.factor <= 0 or not yarn.original:
        raise stated.refused("the factor or the original context length of yarn", (yarn.factor, yarn.original))
    return RopeSettings(theta, dim, "adjacent", yarn=yarn)


def _unknown(stated: Stated, what: str) -> InputError:
    return InputError(what, where=stated.ckpt.path, hint="mtptools verify without --parity checks lineage and validity")
