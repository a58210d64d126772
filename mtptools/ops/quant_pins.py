"""Matrices of a head that stay float on a quantized trunk whatever was asked, and why."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mtptools.checkpoint import Checkpoint
from mtptools.ops.declare import modelopt_config
from mtptools.ops.quant_cover import cover, cover_modelopt
from mtptools.ops.quant_methods import FUSED
from mtptools.ops.quant_modules import Module, experts_of, head_modules
from mtptools.ops.quant_places import built, lists_of, model_types, places
from mtptools.tensors import Tensor

__all__ = ["Pin", "float_in_trunk", "joined", "pins_of", "routers_of"]


@dataclass(frozen=True)
class Pin:
    """by_choice  some runtime reads it quantized: whoever names it gets it"""

    why: str
    by_choice: bool = False


def joined(modules: Sequence[Module], *, experts: bool = True) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What runtimes make one matrix of: its name, and the modules that are its parts.

    experts  all of a layer's experts are one, too; without, gate and up of each of them
    """
    names = {m.name for m in modules}
    for parent in dict.fromkeys(name.rpartition(".")[0] for name in names):
        for row in FUSED:
            parts = tuple(f"{parent}.{part}" for part in row.parts if f"{parent}.{part}" in names)
            if len(parts) > 1:
                yield f"{parent}.{row.name}", parts
    if experts:
        for whole in dict.fromkeys(e for m in modules if (e := experts_of(m.name)) is not None):
            yield whole, tuple(m.name for m in modules if experts_of(m.name) == whole)


def float_in_trunk(trunk: Mapping[str, Tensor], head: Collection[str], modules: Sequence[Module]) -> set[str]:
    """Modules of a head whose like no layer of a quantized trunk has quantized (Step-3.7-FP8's g_proj, in no list).

    trunk  every tensor of the checkpoint;  head  names of those that are not the trunk's
    """
    there = head_modules({name: (t.codec, len(t.shape)) for name, t in trunk.items() if name not in head})
    coded: dict[str, bool] = {}
    for module in there:
        kind = _kind(module.name)
        coded[kind] = coded.get(kind, False) or module.quantized
    return {m.name for m in modules if not coded.get(_kind(m.name), True)}


def _kind(name: str) -> str:
    """A name without the layer and the expert it is of."""
    return re.sub(r"experts\.\d+", "experts", re.sub(r"^.*?layers\.\d+\.", "", name))


def pins_of(
    config: dict[str, Any],
    second: Mapping[str, Any] | None,
    modules: Sequence[Module],
    small: Collection[str] = (),
    alike: Collection[str] = (),
) -> dict[str, Pin]:
    """Of modules that are to be quantized, those that cannot: module -> why.

    config   config.json;  second  hf_quant_config.json
    modules  all matrices of the head; `quantized` as it was asked
    small    those among them that are never quantized: routers, and what is kept exact as they are
    alike    those that are float in the trunk's layers

    Three reasons: a runtime builds the module float whatever a list says, an entry of the trunk's configuration that
    speaks of more than the head leaves it out, or the trunk's own are float, listed or not. All hold for whatever a
    runtime joins with the module, unless it knows that one part is float (the DSA indexer's, under FP8).
    """
    after = cover(config, modules, [])
    after_second = None if second is None else cover_modelopt(second, after, modules, [])
    types = model_types(config)
    out: dict[str, Pin] = {}
    apart: set[str] = set()
    for place in places(after, after_second):
        lists, aimed = lists_of(place, types), lists_of(replace(place, keys=()), types)
        for module in modules:
            row = built(module, place, types)
            if module.name in small:
                apart |= {module.name} if row is not None else set()
                out[module.name] = Pin("float in all releases")
            if not module.quantized or module.name in out:
                continue
            if row is not None:
                out[module.name] = Pin(row.source, not row.everywhere)
            elif any(aimed.verdicts(module.name)):
                keys = ", ".join(only.key for only in place.rule.only if place.tree.get(only.key))
                out[module.name] = Pin(f"{place.where}.{keys} does not name it")
            elif any(lists.verdicts(module.name)) or any(left for left, _ in lists.renamed(module.name)):
                out[module.name] = Pin(f"{place.key} leaves it out, of trunk and head alike")
            elif module.name in alike:
                out[module.name] = Pin("float in every layer of the trunk", by_choice=True)
    for whole, parts in joined([m for m in modules if m.name not in apart]):
        found = next((part for part in parts if part in out), None)
        if found is not None:
            why = f"runtimes join it with {found.rpartition('.')[2]} ({whole.rpartition('.')[2]}): {out[found].why}"
            out |= {part: Pin(why, out[found].by_choice) for part in parts if part not in out}
    return out


def routers_of(trunk: Checkpoint, kinds: Mapping[str, str]) -> list[Module]:
    """Routers of a quantized head that lists must name, as they name the trunk's.

    kinds  name of a tensor of the head, as it is written -> kind of its role

    Where the trunk's are not named either (DeepSeek-V3), runtimes build them float without being told.
    """
    out = []
    types = model_types(trunk.config)
    lists = [lists_of(place, types) for place in places(trunk.config, modelopt_config(trunk))]
    for name, kind in kinds.items():
        if kind != "router" or not name.endswith(".weight"):
            continue
        tail = "." + ".".join(name.rsplit(".", 3)[1:])  # .mlp.gate.weight
        others = [other.removesuffix(".weight") for other in trunk if other.endswith(tail) and other not in kinds]
        if others and lists and all(one.leaves_out(other) for one in lists for other in others):
            out.append(Module(name.removesuffix(".weight"), False))
    return out
