"""What a head's new container says of the model, where the source's own configuration is of another dialect.

Enough for mtptools to know the model again; a runtime wants the release's own configuration and tokenizer.
"""

from __future__ import annotations

from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf import Metadata
from mtptools.containers.gguf_values import GgufValue, array_value, scalar_value, string_value
from mtptools.families import Field

__all__ = ["gguf_metadata", "hf_config"]

_HF_LAYERS: Final = {"linear": "linear_attention", "full": "full_attention"}


def _value(ckpt: Checkpoint, name: str) -> Any:
    """What the checkpoint says of a field, None when nothing."""
    h = ckpt.hparams
    if name == "partial_rotary":
        return h.rope_dim / h.head_dim if h.rope_dim and h.head_dim else None
    value = getattr(h, name, None)
    return None if value in (0, 0.0, ()) else value


def hf_config(ckpt: Checkpoint, depth: int) -> dict[str, Any]:
    """config.json of the model of a GGUF, from its metadata: the fields its family knows."""
    family, h = ckpt.family, ckpt.hparams
    out: dict[str, Any] = {
        "model_type": family.hf_flat or family.hf_types[0],
        "num_hidden_layers": h.n_layers,
        "vocab_size": h.vocab_size,
        "tie_word_embeddings": h.tie_embeddings,
        **family.expected,
    }
    for name, field in family.fields.items():
        value = _value(ckpt, name)
        if value is None or not field.hf:
            continue
        if field.kind == "layers":
            value = [_HF_LAYERS.get(kind, kind) for kind in value]
        _put(out, field.hf[0], value)
    if family.hf_depth:
        _put(out, family.hf_depth[0], depth)
    return out


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def gguf_metadata(ckpt: Checkpoint, depth: int) -> Metadata:
    """GGUF metadata of the model of an HF or MLX checkpoint, from config.json: the fields its family knows."""
    family, h = ckpt.family, ckpt.hparams
    arch = family.gguf_arch
    out: dict[str, GgufValue] = {
        "general.architecture": string_value(arch),
        f"{arch}.block_count": scalar_value("u32", h.n_layers + depth),
        f"{arch}.nextn_predict_layers": scalar_value("u32", depth),
        f"{arch}.vocab_size": scalar_value("u32", h.vocab_size),
    }
    sizes = {field.gguf[0]: _value(ckpt, name) for name, field in family.fields.items() if field.gguf}
    for name, field in family.fields.items():
        value = _value(ckpt, name)
        if value is None or not field.gguf:
            continue
        key, _, less = field.gguf[0].partition(" - ")
        if field.kind == "layers":
            out[f"{arch}.{key}"] = array_value("bool", [kind == "linear" for kind in value] + [False] * depth)
        else:
            out[f"{arch}.{key}"] = _scalar(field, value + (sizes.get(less) or 0) if less else value)
    return Metadata(out)


def _scalar(field: Field, value: Any) -> GgufValue:
    return scalar_value("f32", value) if field.kind == "real" else scalar_value("u32", value)
