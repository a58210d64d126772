"""Editing what a checkpoint declares about its head: GGUF metadata and config.json."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.containers.gguf import Metadata, split_keys
from mtptools.containers.gguf_values import ARRAY, SCALARS, STRING, GgufValue, array_value, scalar_value
from mtptools.containers.safetensors import load_json
from mtptools.errors import CorruptError
from mtptools.families import Family
from mtptools.families.per_layer import PER_LAYER
from mtptools.hparams import text_config
from mtptools.plan import Change
from mtptools.receipt import KEY_PREFIX

__all__ = [
    "MODELOPT_FILE",
    "changes_between",
    "gguf_changes",
    "gguf_with_depth",
    "hf_with_depth",
    "modelopt_config",
    "shard_metadata",
    "stated_by",
    "to_json_bytes",
]

MODELOPT_FILE: Final = "hf_quant_config.json"
_SPLIT: Final = ("split.no", "split.count", "split.tensors.count")


def gguf_with_depth(
    metadata: Metadata,
    arch: str,
    n_trunk: int,
    depth: int,
    donor: Mapping[str, Any] | None = None,
    donor_trunk: int = 0,
) -> Metadata:
    """Metadata that declares `n_trunk` trunk blocks and `depth` blocks of a head, per-layer arrays included.

    donor and donor_trunk give the entries of the head's blocks in per-layer arrays. Keys of an earlier receipt
    are removed; everything else keeps its bytes and its place.
    """
    changes: dict[str, GgufValue | None] = dict.fromkeys(k for k in metadata if k.startswith(KEY_PREFIX))
    changes[f"{arch}.block_count"] = scalar_value("u32", n_trunk + depth)
    key = f"{arch}.nextn_predict_layers"
    changes[key] = scalar_value("u32", depth) if depth else None
    for name, rule in PER_LAYER.items():
        full = f"{arch}.{name}"
        stored = metadata.stored.get(full)
        if stored is None or stored.type != ARRAY:
            continue
        items = stored.value[: n_trunk + depth]
        if len(items) < n_trunk + depth:
            if len(items) < n_trunk:
                raise CorruptError(
                    f"{full} has {stored.count} entries for {n_trunk} trunk blocks",
                    hint="mtptools validate names every such array",
                )
            items += _added(full, rule, donor, donor_trunk, depth - (len(items) - n_trunk))
        if items != stored.value:
            kind = "string" if stored.item == STRING else SCALARS[stored.item or 0][0]
            changes[full] = array_value(kind, items)
    return metadata.edited({k: v for k, v in changes.items() if k in metadata or v is not None})


def _added(key: str, rule: str, donor: Mapping[str, Any] | None, donor_trunk: int, missing: int) -> list[Any]:
    if rule == "false":
        return [False] * missing
    stated = donor.get(key) if donor is not None else None
    if isinstance(stated, list) and len(stated) >= donor_trunk + missing:
        return list(stated[donor_trunk : donor_trunk + missing])
    if stated is not None and not isinstance(stated, list):
        return [stated] * missing
    raise CorruptError(f"the donor does not say what {key} is for its head", hint="use another donor of the same model")


def stated_by(donor: Checkpoint) -> Mapping[str, Any]:
    """Per-layer metadata as a donor states it: a GGUF's own, or what an HF config says of every layer."""
    if donor.dialect == "gguf":
        return donor.metadata
    h, arch = donor.hparams, donor.family.gguf_arch
    return {
        f"{arch}.attention.head_count": h.n_heads,
        f"{arch}.attention.head_count_kv": h.n_kv_heads,
        f"{arch}.feed_forward_length": h.intermediate_size,
        f"{arch}.expert_used_count": h.n_experts_used,
        f"{arch}.expert_feed_forward_length": h.moe_intermediate_size,
        **{f"{arch}.{name}": value for name, value in donor.family.per_layer.items()},
    }


def shard_metadata(metadata: Metadata, number: int, count: int, n_tensors: int) -> Metadata:
    """The same metadata as shard `number` (0-based) of `count`; without split keys when it is the only one."""
    if count == 1:
        return metadata.edited(dict.fromkeys(_SPLIT))
    return metadata.edited(dict(split_keys(number, count, n_tensors)))


def hf_with_depth(config: Mapping[str, Any], family: Family, depth: int) -> dict[str, Any]:
    """config.json that declares `depth` MTP layers, wherever it says so; in the text configuration when it is silent.

    A family whose releases never declare a head (Qwen3-Next) is left silent.
    """
    out: dict[str, Any] = copy.deepcopy(dict(config))
    text = text_config(out)
    stated = 0
    for tree in (text, out):
        for key in family.hf_depth:
            *path, last = key.split(".")
            node: Any = tree
            for part in path:
                node = node.get(part) if isinstance(node, dict) else None
            if isinstance(node, dict) and last in node:
                node[last] = depth
                stated += 1
        if text is out:
            break
    if not stated and family.hf_depth and family.depth_stated and isinstance(text, dict):
        text[family.hf_depth[0]] = depth
    return out


def modelopt_config(ckpt: Checkpoint) -> dict[str, Any] | None:
    """hf_quant_config.json, where ModelOpt says what is quantized; None when there is none."""
    if ckpt.folder is None or not (path := ckpt.folder / MODELOPT_FILE).is_file():
        return None
    tree = load_json(path)
    if not isinstance(tree, dict):
        raise CorruptError("hf_quant_config.json is not an object", where=path, hint="take it from the release again")
    return tree


def to_json_bytes(tree: Mapping[str, Any]) -> bytes:
    # A lone surrogate, legal as an escape in JSON and not in UTF-8, is written as the escape it came as.
    return (json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> list[Change]:
    """Keys whose values differ, nested maps by dotted path, in order of the second."""
    out: list[Change] = []
    for key in dict.fromkeys((*after, *before)):
        left, right = before.get(key), after.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            out += changes_between(left, right, f"{prefix}{key}.")
        elif left != right:
            out.append(Change(f"{prefix}{key}", left, right))
    return out


def gguf_changes(before: Checkpoint, after: Metadata) -> list[Change]:
    """As `changes_between`, comparing stored bytes so that long arrays are not decoded."""
    out = []
    for key in dict.fromkeys((*after, *before.metadata)):
        left, right = before.metadata.stored.get(key), after.stored.get(key)
        if key.startswith(KEY_PREFIX):  # a receipt is not a fact about the model
            continue
        if left is not None and right is not None and left.encoded() == right.encoded():
            continue
        out.append(Change(key, _shown(left), _shown(right)))
    return out


def _shown(value: GgufValue | None) -> Any:
    if value is None:
        return None
    return f"{value.type_name} of {value.count}" if value.type == ARRAY and value.count > 128 else value.value
