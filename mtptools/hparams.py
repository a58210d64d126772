"""One view over config.json and GGUF metadata: the same numbers under the same names, or a clear refusal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.errors import CorruptError
from mtptools.families import Family

__all__ = ["HParams", "gguf_hparams", "hf_hparams", "lookup", "text_config"]


@dataclass(frozen=True)
class HParams:
    """Sizes and constants of one model. Counts are of the trunk alone; `depth` is what the config declares.

    layer_types  "linear" (Gated DeltaNet) or "full" (attention), one per trunk layer
    rope_dim     rotated dimensions of each head
    """

    family: str
    hidden_size: int
    n_layers: int
    depth: int
    vocab_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    intermediate_size: int
    n_experts: int
    n_experts_used: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_eps: float
    rope_theta: float
    rope_dim: int
    context_length: int
    tie_embeddings: bool
    layer_types: tuple[str, ...]
    conv_kernel: int
    linear_k_heads: int
    linear_v_heads: int
    linear_k_head_dim: int
    linear_v_head_dim: int

    def dims(self) -> dict[str, int]:
        """Sizes of the named dimensions in role tables."""
        key_dim = self.linear_k_heads * self.linear_k_head_dim
        value_dim = self.linear_v_heads * self.linear_v_head_dim
        return {
            "hidden": self.hidden_size,
            "two_hidden": 2 * self.hidden_size,
            "vocab": self.vocab_size,
            "q_gate": 2 * self.n_heads * self.head_dim,
            "attn_out": self.n_heads * self.head_dim,
            "kv": self.n_kv_heads * self.head_dim,
            "head_dim": self.head_dim,
            "ffn": self.intermediate_size,
            "experts": self.n_experts,
            "moe_ffn": self.moe_intermediate_size,
            "shexp_ffn": self.shared_expert_intermediate_size,
            "conv_dim": 2 * key_dim + value_dim,
            "conv_kernel": self.conv_kernel,
            "value_dim": value_dim,
            "v_heads": self.linear_v_heads,
            "v_head_dim": self.linear_v_head_dim,
        }


_MISSING: Final = object()
# Upper bound of any count: a header that claims more is damaged, and would have us build tables of that size.
MAX_LAYERS: Final = 4096
MAX_SIZE: Final = 1 << 31


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of config.json that describes the language model (`text_config` of multimodal wrappers)."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def lookup(tree: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted path, or None."""
    node: Any = tree
    for part in dotted.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def hf_hparams(family: Family, config: Mapping[str, Any], where: object) -> HParams:
    """Hyperparameters from config.json. Raises CorruptError naming what is missing or cannot be."""
    text = text_config(config)
    for key, wanted in family.expected.items():
        value = text.get(key, wanted)
        if value != wanted:
            raise CorruptError(
                f"config.json says {key} = {value!r}; {family.name} is known with {wanted!r} only", where=where
            )
    values = {}
    for name, field in family.fields.items():
        found = (lookup(text, path) for path in field.hf)
        values[name] = _chosen(
            next((v for v in found if v is not None), _MISSING), field.default, name, field.hf, where
        )
    n_layers = _count(text.get("num_hidden_layers"), "num_hidden_layers", where)
    depth = text.get(family.hf_depth, config.get(family.hf_depth))
    tie = text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))
    if "tie_word_embeddings" in config and text is not config:
        tie = config["tie_word_embeddings"]
    types = values.get("layer_types")
    if types is not None:
        values["layer_types"] = [kind == "linear_attention" for kind in types]
    vocab = _count(text.get("vocab_size"), "vocab_size", where)
    return _built(family, values, n_layers, _depth(depth, where), vocab, bool(tie), where)


def gguf_hparams(family: Family, metadata: Mapping[str, Any], vocab_size: int, tied: bool, where: object) -> HParams:
    """Hyperparameters from GGUF metadata; the vocabulary's size and tying come from the tensors."""
    arch = family.gguf_arch
    values = {}
    for name, field in family.fields.items():
        found = (metadata.get(f"{arch}.{key}") for key in field.gguf)
        value = next((v for v in found if v is not None), _MISSING)
        if isinstance(value, list) and name != "layer_types":  # per-layer array: layers without attention say 0
            value = max(value, default=0)
        values[name] = _chosen(value, field.default, name, tuple(f"{arch}.{k}" for k in field.gguf), where)
    blocks = _count(metadata.get(f"{arch}.block_count"), f"{arch}.block_count", where)
    depth = _depth(metadata.get(f"{arch}.nextn_predict_layers"), where)
    if depth >= blocks:
        raise CorruptError(f"{depth} MTP layers declared in {blocks} blocks", where=where)
    return _built(family, values, blocks - depth, depth, vocab_size, tied, where)


def _chosen(value: Any, default: object, name: str, keys: tuple[str, ...], where: object) -> Any:
    if value is not _MISSING:
        return value
    if default is ...:
        raise CorruptError(
            f"no {name}: none of {', '.join(keys)} is there", where=where, hint="mtptools inspect shows what is stated"
        )
    return default


def _count(value: Any, name: str, where: object, most: int = MAX_SIZE) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
        raise CorruptError(f"{name} is {value!r}, not a count", where=where)
    return value


def _depth(value: Any, where: object) -> int:
    """None and absent both mean that no head is declared."""
    return 0 if value is None else _count(value, "the number of MTP layers", where, 64)


def _layer_types(values: Mapping[str, Any], n_layers: int, where: object) -> tuple[str, ...]:
    stated = values.get("layer_types")
    if stated is not None:
        if not isinstance(stated, list) or len(stated) < n_layers:
            raise CorruptError(f"layer types are given for {len(stated)} of {n_layers} layers", where=where)
        return tuple("linear" if recurrent else "full" for recurrent in stated[:n_layers])
    every = _count(values["full_attention_interval"], "full_attention_interval", where) or 1
    return tuple("full" if (n + 1) % every == 0 else "linear" for n in range(n_layers))


def _built(
    family: Family, values: dict[str, Any], n_layers: int, depth: int, vocab: int, tie: bool, where: object
) -> HParams:
    if n_layers > MAX_LAYERS:
        raise CorruptError(f"{n_layers} layers are claimed", where=where)
    for name, value in values.items():
        if isinstance(value, bool) or (not isinstance(value, int | float) and name != "layer_types"):
            raise CorruptError(f"{name} is {value!r}, not a number", where=where)
        if isinstance(value, int | float) and not 0 <= value < 1e12:
            raise CorruptError(f"{name} is {value!r}", where=where)
    v_heads = values["linear_v_heads"]
    v_dim = values["linear_v_head_dim"] or (values["ssm_inner"] // v_heads if v_heads else 0)
    rope_dim = values["rope_dim"] or int(values["head_dim"] * values["partial_rotary"])
    return HParams(
        family=family.name,
        hidden_size=values["hidden_size"],
        n_layers=n_layers,
        depth=depth,
        vocab_size=vocab,
        n_heads=values["n_heads"],
        n_kv_heads=values["n_kv_heads"],
        head_dim=values["head_dim"],
        intermediate_size=values["intermediate_size"],
        n_experts=values.get("n_experts", 0),
        n_experts_used=values.get("n_experts_used", 0),
        moe_intermediate_size=values.get("moe_intermediate_size", 0),
        shared_expert_intermediate_size=values.get("shared_expert_intermediate_size", 0),
        norm_eps=float(values["norm_eps"]),
        rope_theta=float(values["rope_theta"]),
        rope_dim=rope_dim,
        context_length=values["context_length"],
        tie_embeddings=tie,
        layer_types=_layer_types(values, n_layers, where),
        conv_kernel=values["conv_kernel"],
        linear_k_heads=values["linear_k_heads"],
        linear_v_heads=v_heads,
        linear_k_head_dim=values["linear_k_head_dim"],
        linear_v_head_dim=v_dim,
    )
