"""A quantization_config for a quantized head on a float trunk: its groups name the head's modules and nothing else.

vLLM (compressed_tensors.py, `get_scheme_dict` and `get_moe_method`) builds a module that no target of config_groups
names, or that `ignore` leaves out, as float, linear layers and fused experts alike, and reads each group's own format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.head import head_names
from mtptools.ops.quant_cover import entries_for
from mtptools.ops.quant_methods import METHODS
from mtptools.ops.quant_modules import Module, root_of, tail_of
from mtptools.ops.quant_places import Place, lists_of, model_types
from mtptools.quantized import COMPANIONS, ENCODINGS

__all__ = ["OWN", "is_own", "own_config"]

_METHOD: Final = "compressed-tensors"
_KEY: Final = "quantization_config"


def _weights(kind: str, strategy: str, group: int) -> dict[str, Any]:
    out = {"num_bits": 4, "type": kind, "symmetric": True, "strategy": strategy, "group_size": group}
    return {**out, "dynamic": False, "actorder": None}


# Encodings a head can have of its own: the format, and what the group says of weights.
OWN: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    **{
        name: ("pack-quantized", _weights("int", "group", one.group))
        for name, one in ENCODINGS.items()
        if name.startswith("int4-")
    },
    "nvfp4": ("nvfp4-pack-quantized", _weights("float", "tensor_group", 16)),
}


def is_own(trunk: Checkpoint) -> bool:
    """Is the trunk float, so that what a configuration says is for the head to say?"""
    config = trunk.config.get(_KEY) or (trunk.config.get("text_config") or {}).get(_KEY)
    if config is not None and (not isinstance(config, dict) or config.get("quant_method") != _METHOD):
        return False
    head = set(head_names(trunk))
    return not any(name.endswith(COMPANIONS) for name in trunk if name not in head)


def own_config(config: Mapping[str, Any], encodings: Mapping[str, str], modules: Sequence[str]) -> dict[str, Any]:
    """config.json with a quantization_config for these modules; with none of them, without one.

    encodings  module -> name of its encoding, of all quantized ones
    modules    every matrix of the head, routers too
    """
    out = {key: value for key, value in config.items() if key != _KEY}
    if _KEY in (text := out.get("text_config") or {}):
        out["text_config"] = {key: value for key, value in text.items() if key != _KEY}
    if not encodings:
        return out
    groups = {}
    for number, name in enumerate(dict.fromkeys(encodings.values())):
        form, weights = OWN[name]
        inside = {module for module, its in encodings.items() if its == name}
        groups[f"group_{number}"] = {
            "format": form,
            "targets": _matching(config, [Module(module, module not in inside) for module in modules]),
            "weights": weights,
            "input_activations": None,
            "output_activations": None,
        }
    formats = {group["format"] for group in groups.values()}
    roots = sorted({re.escape(tail_of(root_of(module))) for module in modules})
    ignore = [rf"re:^(?!(?:.*\.)?(?:{'|'.join(roots)})\.).*"]  # all but the head
    ignore += [f"re:.*{re.escape(tail_of(module))}$" for module in modules if module not in encodings]
    out[_KEY] = {
        "quant_method": _METHOD,
        "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": groups,
        "ignore": ignore,
        "kv_cache_scheme": None,
    }
    return out


def _matching(config: Mapping[str, Any], modules: Sequence[Module]) -> list[str]:
    """The fewest entries that match the modules which are not `quantized`, and none that is: as for a list that
    leaves modules out, the other way round."""
    place = Place("config.json", (_KEY,), _METHOD, METHODS[_METHOD], {}, ("targets",))
    types = model_types(config)
    return entries_for(place, lists_of(place, types), modules, types)
