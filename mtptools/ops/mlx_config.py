"""MLX's `quantization` and a grafted head: an entry for every module whose bits are not the trunk's.

mlx-lm and mlx-vlm quantize a module when its scales are there, with the global bits and group size unless the module
has an entry of its own; other bits without an entry fail with a shape error. A float head needs no entry.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from mtptools.checkpoint import Checkpoint
from mtptools.plan import Entry
from mtptools.quantized import ENCODINGS, MlxLayout, mlx_layout

__all__ = ["with_head"]


def with_head(config: dict[str, Any], donor: Checkpoint, head: Sequence[Entry], facts: list[str]) -> dict[str, Any]:
    """config.json in which `quantization`, and its mirror `quantization_config`, fit the head's modules."""
    out = copy.deepcopy(config)
    gone = _without_floats(out, head)
    modules = {entry.name.removesuffix(".scales"): entry for entry in head if entry.name.endswith(".scales")}
    added: dict[str, Any] = {}
    for module, entry in modules.items():
        layout = _layout(entry, donor)
        if layout is None or layout == mlx_layout(out, module):
            continue
        stated = {"group_size": layout.group, "bits": layout.bits, "mode": layout.mode}
        out.setdefault("quantization", dict(stated))
        added[module] = stated
    if gone:
        facts.append(f"quantization loses {len(gone)} entries: these modules of the head are float now")
    if not added:
        return out
    out["quantization"] = {**out["quantization"], **added}
    if "quantization_config" in out:
        out["quantization_config"] = {**out["quantization_config"], **added}
    facts.append(f"quantization gains {len(added)} entries: the head's bits are not the trunk's")
    return out


def _layout(entry: Entry, donor: Checkpoint) -> MlxLayout | None:
    made = ENCODINGS[entry.encoding].layout if entry.encoding else None
    if made is not None:
        mode, bits, group = made
        return MlxLayout(bits, group, mode)
    return mlx_layout(donor.config, entry.names[0].removesuffix(".scales"))


def _without_floats(config: dict[str, Any], head: Sequence[Entry]) -> list[str]:
    """Take the entries of float modules out: mlx-lm quantizes what has an entry, scales or none."""
    names = {entry.name for entry in head}
    floats = {name.removesuffix(".weight") for name in names if name.endswith(".weight")}
    floats -= {name.removesuffix(".scales") for name in names if name.endswith(".scales")}
    gone = []
    for key in ("quantization", "quantization_config"):
        table = config.get(key)
        for module in floats:
            if isinstance(table, dict) and isinstance(table.get(module), dict):
                del table[module]
                gone += [module] if key == "quantization" else []
    return gone
