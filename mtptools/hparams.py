"""One view over config.json and GGUF metadata: the same numbers under the same names, or a clear refusal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import prod
from reprlib import repr as short  # a damaged value may be a megabyte long
from typing import Any, Final

from mtptools.errors import CorruptError
from mtptools.families import Family, Field

__all__ = [
    "MAX_DEPTH",
    "MAX_LAYERS",
    "HParams",
    "declared_depth",
    "gguf_hparams",
    "hf_hparams",
    "lookup",
    "text_config",
]


@dataclass(frozen=True, kw_only=True)
class HParams:
    """Sizes and constants of one model; 0 where its family has no such thing. Counts are of the trunk alone.

    depth        what the configuration declares
    layer_types  one per trunk layer, a key of the family's trunk tables: "linear" (Gated DeltaNet) or "full"
                 (attention); "dense" or "moe"; "unknown" where the trunk is not described
    rope_dim     rotated dimensions of each head
    """

    family: str
    hidden_size: int
    n_layers: int
    depth: int
    vocab_size: int
    tie_embeddings: bool
    layer_types: tuple[str, ...]
    n_heads: int = 0
    n_kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    intermediate_size: int = 0
    n_experts: int = 0
    n_experts_used: int = 0
    n_shared_experts: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0
    first_dense: int = 0
    norm_eps: float = 0.0
    rope_theta: float = 0.0
    rope_dim: int = 0
    context_length: int = 0
    conv_kernel: int = 0
    linear_k_heads: int = 0
    linear_v_heads: int = 0
    linear_k_head_dim: int = 0
    linear_v_head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    index_n_heads: int = 0
    index_head_dim: int = 0
    o_lora_rank: int = 0
    o_groups: int = 0
    hc_mult: int = 0
    moe_latent_size: int = 0
    expert_hidden_size: int = 0

    def size(self, expression: str | int) -> int:
        """The value of a size expression: sums of products of numbers and field names, "2*n_heads*head_dim"."""
        if isinstance(expression, int):
            return expression
        return sum(
            prod(int(name) if name.isdigit() else int(getattr(self, name)) for name in term.split("*"))
            for term in expression.split("+")
        )


_NAMES: Final = frozenset(field.name for field in fields(HParams))

# Upper bounds of counts: a header that claims more is damaged, and would have us build tables of that size.
MAX_LAYERS: Final = 4096
MAX_EXPERTS: Final = 4096
MAX_DEPTH: Final = 64
MAX_SIZE: Final = 1 << 31
_BOUNDS: Final = {"n_experts": MAX_EXPERTS + 1, "n_experts_used": MAX_EXPERTS + 1}
# What a dialect's list of layers may say, in our words: names in config.json, "is recurrent" in a GGUF.
_HF_LAYERS: Final = {"linear_attention": "linear", "full_attention": "full"}
_GGUF_LAYERS: Final = {True: "linear", False: "full"}
_HINT: Final = "take config.json, or the GGUF, from the release again"


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


def declared_depth(family: Family, config: Mapping[str, Any]) -> Any:
    """What config.json says of the number of MTP layers, as it stands there; None when it says nothing."""
    text = text_config(config)
    stated = (lookup(tree, key) for key in family.hf_depth for tree in (text, config))
    return next((value for value in stated if value is not None), None)


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
    return _built(
        family,
        values,
        # LongCat-Flash says num_layers.
        _count(text.get("num_hidden_layers", text.get("num_layers")), "num_hidden_layers", where, MAX_LAYERS + 1),
        _depth(declared_depth(family, config), where),
        _count(text.get("vocab_size"), "vocab_size", where),
        _tied(config, text, where),
        where,
    )


def gguf_hparams(family: Family, metadata: Mapping[str, Any], vocab_size: int, tied: bool, where: object) -> HParams:
    """Hyperparameters from GGUF metadata; the vocabulary's size and tying come from the tensors.

    Raises CorruptError naming what is missing or cannot be.
    """
    arch = str(metadata.get("general.architecture"))
    values = {}
    for name, field in family.fields.items():
        stated = [(f"{arch}.{key}", _gguf_value(metadata, arch, key, field, where)) for key in field.gguf]
        values[name] = _chosen(name, field, stated, _GGUF_LAYERS, where)
    blocks = _count(metadata.get(f"{arch}.block_count"), f"{arch}.block_count", where, MAX_LAYERS + 1)
    depth = _depth(metadata.get(f"{arch}.nextn_predict_layers"), where)
    if depth >= blocks:
        raise _refused(f"{depth} MTP layers declared in {blocks} blocks", where)
    return _built(family, values, blocks - depth, depth, vocab_size, tied, where)


def _gguf_value(metadata: Mapping[str, Any], arch: str, key: str, field: Field, where: object) -> Any:
    """A metadata value, a difference of two ("a - b"), or of a per-layer array of counts the largest."""
    if " - " in key:
        left, right = (_gguf_value(metadata, arch, part, field, where) for part in key.split(" - "))
        return None if left is None or right is None else left - right
    value = metadata.get(f"{arch}.{key}")
    return value if field.kind == "layers" else _largest(value, key, where)


def _chosen(
    name: str, field: Field, stated: Sequence[tuple[str, Any]], layers: Mapping[Any, str], where: object
) -> Any:
    """The first of the (key, value) pairs that says something, as what the hyperparameter `name` is; or its default."""
    for key, value in stated:
        if value is None:
            continue
        if field.kind == "layers":
            return _layer_kinds(value, key, layers, where)
        if field.kind == "real":
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


def _layer_types(family: Family, values: Mapping[str, Any], n_layers: int, where: object) -> tuple[str, ...]:
    if family.layers == "unknown":
        return ("unknown",) * n_layers
    if family.layers == "dense_first":
        return tuple("dense" if n < values["first_dense"] else "moe" for n in range(n_layers))
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
    v_heads = values.get("linear_v_heads", 0)
    if v_heads and not values.get("linear_v_head_dim"):
        values["linear_v_head_dim"] = values["ssm_inner"] // v_heads
    heads = values.get("n_heads", 0)
    if not values.get("head_dim") and heads:
        values["head_dim"] = values["hidden_size"] // heads
    head_dim = values.get("head_dim", 0)
    if "rope_dim" in values:
        values["rope_dim"] = values["rope_dim"] or int(head_dim * values.get("partial_rotary", 1.0))
        if values["rope_dim"] > head_dim:
            raise _refused(f"{values['rope_dim']} rotated dimensions in heads of {head_dim}", where)
    return HParams(
        family=family.name,
        n_layers=n_layers,
        depth=depth,
        vocab_size=vocab,
        tie_embeddings=tie,
        layer_types=_layer_types(family, values, n_layers, where),
        **{name: value for name, value in values.items() if name in _NAMES - {"layer_types"}},
    )
