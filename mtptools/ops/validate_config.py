"""Checks of config.json alone: where the depth stands, and lists with one entry per layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.families import known_families
from mtptools.hparams import lookup, text_config

__all__ = ["depth_place", "lists", "speaks_of_a_head"]

Report = Iterator[tuple[str, str, str]]

# Lists of config.json that have one entry per layer, and whether a head's layers are in them: "no", "may" or "must".
_LISTS: Final = {
    "layer_types": "may",
    "hybrid_layer_pattern": "may",
    "moe_layer_freq": "may",
    "partial_rotary_factors": "may",
    "swiglu_limits": "may",
    "swiglu_limits_shared": "may",
    "mlp_layer_types": "may",
    "compress_ratios": "must",
}
_WORDS: Final = re.compile(r"(^|\.)(mtp|nextn|mtp_layers|mtp_block|eh_proj)(\.|_|$)")
# Keys by which a configuration declares a head, of every family that is known and of some that are not.
_MORE_KEYS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules")


def speaks_of_a_head(ckpt: Checkpoint) -> bool:
    """Does anything in a checkpoint of an unknown architecture declare a head, or is one of its tensors named so?"""
    if ckpt.dialect == "gguf":
        arch = ckpt.metadata.get("general.architecture")
        return bool(ckpt.metadata.get(f"{arch}.nextn_predict_layers")) or any(".nextn." in name for name in ckpt)
    keys = {key for family in known_families() for key in family.hf_depth} | set(_MORE_KEYS)
    text = text_config(ckpt.config, ckpt.path)
    stated = any(lookup(tree, key) for key in keys for tree in (text, ckpt.config))
    return stated or any(_WORDS.search(name) for name in ckpt)


def _stated(tree: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key in keys if (value := lookup(tree, key)) is not None}


def depth_place(ckpt: Checkpoint) -> Report:
    """Wrappers declare in text_config, and that is where runtimes look."""
    text = text_config(ckpt.config, ckpt.path) if ckpt.config else ckpt.config
    if text is ckpt.config:
        return
    inside, outside = _stated(text, ckpt.family.hf_depth), _stated(ckpt.config, ckpt.family.hf_depth)
    for key, value in outside.items():
        if key not in inside:
            yield (
                f"{key} stands at the top level of config.json and not in text_config",
                f"{key} = {value!r}; runtimes read a wrapper's text_config",
                f"move it: text_config.{key} = {value!r}",
            )
        elif inside[key] != value:
            yield (
                f"{key} is {value!r} at the top level of config.json and {inside[key]!r} in text_config",
                "runtimes read a wrapper's text_config",
                f"set both to the number of MTP layers there are: text_config.{key}",
            )


def lists(ckpt: Checkpoint) -> Report:
    """A list one short is read as a 0 for the last layer: sliding attention silently becomes full attention."""
    if not ckpt.config:
        return
    text, h = text_config(ckpt.config, ckpt.path), ckpt.hparams
    for key, head in _LISTS.items():
        value = lookup(text, key)
        if not isinstance(value, list):
            continue
        lengths = {h.n_layers + h.depth} if head == "must" else {h.n_layers, h.n_layers + max(h.depth, 3)}
        lengths |= {h.n_layers + h.depth}
        if len(value) not in lengths:
            yield (
                f"{key} has {len(value)} entries for {h.n_layers} layers and {h.depth} MTP layer(s)",
                "runtimes read a missing entry as 0, or refuse the file",
                "take config.json from the release again",
            )
