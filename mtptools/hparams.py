"""One view over config.json and GGUF metadata: the same numbers under the same names, or a clear refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as short  # a damaged value may be a megabyte long
from typing import Any, Final

from mtptools.errors import CorruptError
from mtptools.families import Family, Field

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


# Upper bounds of counts: a header that claims more is damaged, and would have us build tables of that size.
MAX_LAYERS: Final = 4096
MAX_EXPERTS: Final = 4096
MAX_DEPTH: Final = 64
MAX_SIZE: Final = 1 << 31
_BOUNDS: Final = {"n_experts": MAX_EXPERTS + 1, "n_experts_used": MAX_EXPERTS + 1}
# Fields that are real numbers; every other one but layer_types is a count.
_REALS: Final = ("norm_eps", "rope_theta", "partial_rotary")
# What a dialect's list of layers may say, in our words: names in config.json, "is recurrent" in a GGUF.
_HF_LAYERS: Final = {"linear_attention": "linear", "full_attention": "full"}
_GGUF_LAYERS: Final = {True: "linear", False: "full"}
_HINT: Final = "take config.json, or the GGUF, from the release again; mtptools inspect shows what is read of it"


def _refused(what: str, where: object) -> CorruptError:
    return CorruptError(what, where=where, hint=_HINT)


def text_config(config: Mapping[str, Any], where: object = "config.json") -> Mapping[str, Any]:
    """The part of config.json that describes the language model (`text_config` of multimodal wrappers).

    Raises CorruptError when there is a `text_config` and it is no object.
    """
    inner = config.get("text_config")
    if inner is None:
        return config
    if not isinstance(inner, dict):
        raise _refused(f"text_config is {short(inner)}, not an object", where)
    return inner


def lookup(tree: Mapping[str, Any], dotted: str, where: object = "config.json") -> Any:
    """The value at a dotted path, or None. Raises CorruptError when the path leads through a value, not an object."""
    node: Any = tree
    parts = dotted.split(".")
    for depth, part in enumerate(parts):
        if node is None:
            return None
        if not isinstance(node, Mapping):
            raise _refused(f"{'.'.join(parts[:depth])} is {short(node)}, not an object", where)
        node = node.get(part)
    return node


def hf_hparams(family: Family, config: Mapping[str, Any], where: object) -> HParams:
    """Hyperparameters from config.json. Raises CorruptError naming what is missing or cannot be."""
    text = text_config(config, where)
    for key, wanted in family.expected.items():
        value = text.get(key, wanted)
        if value != wanted:
            raise _refused(
                f"config.json says {key} = {short(value)}; {family.name} is known with {wanted!r} only", where
            )
    values = {
        name: _chosen(name, field, [(key, lookup(text, key, where)) for key in field.hf], _HF_LAYERS, where)
        for name, field in family.fields.items()
    }
    depth = text.get(family.hf_depth, config.get(family.hf_depth))
    return _built(
        family,
        values,
        _count(text.get("num_hidden_layers"), "num_hidden_layers", where, MAX_LAYERS + 1),
        _depth(depth, where),
        _count(text.get("vocab_size"), "vocab_size", where),
        _tied(config, text, where),
        where,
    )


def gguf_hparams(family: Family, metadata: Mapping[str, Any], vocab_size: int, tied: bool, where: object) -> HParams:
    """Hyperparameters from GGUF metadata; the vocabulary's size and tying come from the tensors.

    Raises CorruptError naming what is missing or cannot be.
    """
    arch = family.gguf_arch
    values = {}
    for name, field in family.fields.items():
        keys = [f"{arch}.{key}" for key in field.gguf]
        stated = [(key, metadata.get(key)) for key in keys]
        if name != "layer_types":
            stated = [(key, _largest(value, key, where)) for key, value in stated]
        values[name] = _chosen(name, field, stated, _GGUF_LAYERS, where)
    blocks = _count(metadata.get(f"{arch}.block_count"), f"{arch}.block_count", where, MAX_LAYERS + 1)
    depth = _depth(metadata.get(f"{arch}.nextn_predict_layers"), where)
    if depth >= blocks:
        raise _refused(f"{depth} MTP layers declared in {blocks} blocks", where)
    return _built(family, values, blocks - depth, depth, vocab_size, tied, where)


def _chosen(
    name: str, field: Field, stated: Sequence[tuple[str, Any]], layers: Mapping[Any, str], where: object
) -> Any:
    """The first of the (key, value) pairs that says something, as what the hyperparameter `name` is; or its default."""
    for key, value in stated:
        if value is None:
            continue
        if name == "layer_types":
            return _layer_kinds(value, key, layers, where)
        if name in _REALS:
            return _real(value, key, where)
        return _count(value, key, where, _BOUNDS.get(name, MAX_SIZE))
    if field.default is ...:
        raise _refused(f"no {name}: none of {', '.join(key for key, _ in stated)} is there", where)
    return field.default


def _largest(value: Any, key: str, where: object) -> Any:
    """A per-layer array as its largest count: layers without attention say 0. Anything else as it is."""
    return max((_count(item, key, where) for item in value), default=0) if isinstance(value, list) else value


def _count(value: Any, key: str, where: object, most: int = MAX_SIZE) -> int:
    """`value` as a whole number from 0 to below `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
        raise _refused(f"{key} is {short(value)}, not a count below {most}", where)
    return value


def _real(value: Any, key: str, where: object) -> float:
    """`value` as a finite number that is not negative."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e12:
        raise _refused(f"{key} is {short(value)}, not a number from 0 to 1e12", where)
    return float(value)


def _depth(value: Any, where: object) -> int:
    """None and absent both mean that no head is declared."""
    return 0 if value is None else _count(value, "the number of MTP layers", where, MAX_DEPTH)


def _tied(config: Mapping[str, Any], text: Mapping[str, Any], where: object) -> bool:
    """tie_word_embeddings; a multimodal wrapper's own word goes before its text configuration's."""
    for tree in (config, text):
        value = tree.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
        if value is not None:
            raise _refused(f"tie_word_embeddings is {short(value)}, not true or false", where)
    return False


def _layer_kinds(value: Any, key: str, known: Mapping[Any, str], where: object) -> list[str]:
    """A list with what a dialect says of each layer, in our words."""
    if not isinstance(value, list):
        raise _refused(f"{key} is {short(value)}, not a list with an entry for each layer", where)
    for layer, kind in enumerate(value):
        if not isinstance(kind, str | int) or kind not in known:
            words = " and ".join(map(str, known))
            raise _refused(f"{key} says {short(kind)} of layer {layer}; known are {words}", where)
    return [known[kind] for kind in value]


def _layer_types(values: Mapping[str, Any], n_layers: int, where: object) -> tuple[str, ...]:
    stated = values["layer_types"]
    if stated is not None:
        if len(stated) < n_layers:
            raise _refused(f"layer types are given for {len(stated)} of {n_layers} layers", where)
        return tuple(stated[:n_layers])
    every = values["full_attention_interval"] or 1
    return tuple("full" if (n + 1) % every == 0 else "linear" for n in range(n_layers))


def _built(
    family: Family, values: dict[str, Any], n_layers: int, depth: int, vocab: int, tie: bool, where: object
) -> HParams:
    v_heads = values["linear_v_heads"]
    v_dim = values["linear_v_head_dim"] or (values["ssm_inner"] // v_heads if v_heads else 0)
    rope_dim = values["rope_dim"] or int(values["head_dim"] * values["partial_rotary"])
    if rope_dim > values["head_dim"]:
        raise _refused(f"{rope_dim} rotated dimensions in heads of {values['head_dim']}", where)
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
        norm_eps=values["norm_eps"],
        rope_theta=values["rope_theta"],
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
