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
from mtptools.quantized import mlx_layout

__all__ = ["with_head"]


def with_head(config: dict[str, Any], donor: Checkpoint, head: Sequence[Entry], facts: list[str]) -> dict[str, Any]:
    """config.json in which `quantization`, and its mirror `quantization_config`, fit the head's modules."""
    modules = {entry.name.removesuffix(".scales"): entry.names[0] for entry in head if entry.name.endswith(".scales")}
    if not modules:
        return config
    out = copy.deepcopy(config)
    added: dict[str, Any] = {}
    for module, name in modules.items():
        layout = mlx_layout(donor.config, name.removesuffix(".scales"))
        if layout is None or layout == mlx_layout(config, module):
            continue
        stated = {"group_size": layout.group, "bits": layout.bits, "mode": layout.mode}
        out.setdefault("quantization", dict(stated))
        added[module] = stated
    if not added:
        return out
    out["quantization"] = {**out["quantization"], **added}
    if "quantization_config" in out:
        out["quantization_config"] = {**out["quantization_config"], **added}
    facts.append(f"quantization gains {len(added)} entries: the head's bits are not the trunk's")
    return out
