"""HF quantization_config and the head, module by module: what breaks a loader, and the entries that mend it.

A head that stays float on a quantized trunk must be named in the list its method reads; one that is quantized must
not. The rules are data (`quant_methods`); how runtimes read them is `quant_match`, what a module is `quant_modules`,
the edits are `quant_cover`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mtptools.ops.quant_cover import cover, cover_modelopt, entries_for
from mtptools.ops.quant_match import Lists
from mtptools.ops.quant_methods import METHODS, UNLOADABLE
from mtptools.ops.quant_modules import Module, experts_of, fused_groups, head_modules
from mtptools.ops.quant_places import (
    Place,
    built,
    knows_method,
    lists_of,
    model_types,
    of_type,
    places,
    switched_off,
    unknown_methods,
)

__all__ = [
    "METHODS",
    "Module",
    "Row",
    "cover",
    "cover_modelopt",
    "head_modules",
    "judge",
    "knows_method",
    "unknown_methods",
]


_KEYS = ("quantization_config", "compression_config", "quantization")


@dataclass(frozen=True)
class Row:
    """A finding: what is wrong, the evidence, what to type or edit. A "warning" is worked around by some runtime."""

    what: str
    evidence: str
    fix: str
    level: Literal["error", "warning"] = "error"


def _some(modules: Sequence[Module], limit: int = 3) -> str:
    """The names, experts as one, in a line."""
    names = list(
        dict.fromkeys(f"{e}.*" if (e := experts_of(m.name)) not in (None, m.name) else m.name for m in modules)
    )
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def judge(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None, modules: Sequence[Module]) -> list[Row]:
    """Findings about the head's modules in config.json and, where it is there, hf_quant_config.json.

    Nothing is said of a method that is not known (`unknown_methods`), or where nothing is quantized. Raises
    CorruptError for a list that is none.
    """
    found = places(config, modelopt)
    types, switch = model_types(config), switched_off(config)
    out = list(_stored(modules, found, types)) if found else []
    coded = [m for m in modules if m.quantized]
    if coded and not found and not _states_any(config):
        out.append(
            Row(
                f"{len(coded)} module(s) of the head are quantized, and no configuration says so",
                f"{_some(coded)}; config.json has no quantization_config",
                "runtimes build them float: take config.json from the release, or mtptools quantize --head BF16",
            )
        )
    if switch is not None:
        wrong = [m for m in modules if m.quantized]
        if wrong:
            what = f"{len(wrong)} module(s) of the head are quantized, and {switch} says that the head is float"
            out.append(Row(what, f"{_some(wrong)}; config.json {switch}", f"take {switch} out of config.json"))
        return out
    for place in found:
        out += _listed(place, modules, types)
    return out


def _states_any(config: Mapping[str, Any]) -> bool:
    """Is there a quantization of any method, known here or not?"""
    trees = (config, config.get("text_config") or {})
    return any(isinstance(tree, Mapping) and tree.get(key) for tree in trees for key in _KEYS)


def _stored(modules: Sequence[Module], found: Sequence[Place], types: Sequence[str]) -> Iterator[Row]:
    """What no list can mend: matrices that runtimes join, stored half quantized."""
    held = [m for m in modules if not any(built(m, place, types) for place in found if not m.quantized)]
    groups = [(name, parts) for name, _, parts in fused_groups(held)]
    groups += [(e, tuple(m for m in modules if experts_of(m.name) == e)) for e in _experts(modules)]
    for name, parts in groups:
        floats = [m for m in parts if not m.quantized]
        if 0 < len(floats) < len(parts):
            yield Row(
                f"{name} is stored half quantized: runtimes build it whole",
                f"float: {_some(floats)}; quantized: {_some([m for m in parts if m.quantized])}",
                "take the head from one release: mtptools strip, then mtptools graft",
            )


def _experts(modules: Sequence[Module]) -> list[str]:
    return list(dict.fromkeys(e for m in modules if (e := experts_of(m.name)) is not None))


def _listed(place: Place, modules: Sequence[Module], types: Sequence[str]) -> Iterator[Row]:
    lists = lists_of(place, types)
    key = place.key
    float_missing, tolerated, out_wrongly, unbuilt, elsewhere = (list[Module]() for _ in range(5))
    unseen: dict[str, list[Module]] = {}
    for module in modules:
        row, verdicts = built(module, place, types), lists.verdicts(module.name)
        if module.quantized:
            if any(verdicts) or any(out for out, _ in lists.renamed(module.name)):
                out_wrongly.append(module)
            elif row is not None:
                (unbuilt if row.everywhere else elsewhere).append(module)
        elif not all(verdicts):
            if row is None or not row.everywhere:
                float_missing.append(module)
            elif not row.silent:
                tolerated.append(module)
        elif row is None or not row.everywhere:
            for spelling in [row for out, row in lists.renamed(module.name) if not out]:
                unseen.setdefault(spelling.source, []).append(module)
    for source, missed in unseen.items():
        add = ", ".join(map(repr, entries_for(place, lists, missed, types)[:3]))
        yield Row(
            f"{len(missed)} float module(s) of the head are left out under a name that one runtime does not use",
            f"{_some(missed)}; {key}: {source}",
            f"add {add} to {key}",
            "warning",
        )
    if float_missing:
        add = ", ".join(map(repr, entries_for(place, lists, modules, types)[:3]))
        yield Row(
            f"{len(float_missing)} float module(s) of the head are listed as quantized ({place.method})",
            f"{_some(float_missing)}: not left out by {key}",
            f"add {add} to {key}",
        )
    if tolerated:
        row = built(tolerated[0], place, types)
        yield Row(
            f"{_some(tolerated)} is float, and listed as quantized ({place.method})",
            f"not left out by {key}; {row.source if row is not None else ''}",
            f"add {tolerated[0].name!r} to {key}",
            "warning",
        )
    if out_wrongly:
        yield Row(
            f"{len(out_wrongly)} quantized module(s) of the head are left out ({place.method})",
            f"{_some(out_wrongly)}; {key} leaves them out, so their scales are not read",
            f"take the entry out of {key}, or graft a float head",
        )
    for wrong, level in ((unbuilt, "error"), (elsewhere, "warning")):
        row = built(wrong[0], place, types) if wrong else None
        if row is not None:
            yield Row(
                f"{len(wrong)} quantized module(s) of the head are built float"
                + " by some runtimes" * (level != "error"),
                f"{_some(wrong)}; {row.source}",
                "take a head in which they are float",
                "error" if level == "error" else "warning",
            )
    yield from _one_by_one(lists, key, modules, place)
    for refusal in UNLOADABLE:
        floats = [m for m in modules if not m.quantized and built(m, place, types) is None]
        if floats and of_type(types, refusal.types) and place.method in refusal.methods:
            yield Row(refusal.what, f"{_some(floats)}; {refusal.source}", "graft the release's own head", "warning")


def _one_by_one(lists: Lists, key: str, modules: Sequence[Module], place: Place) -> Iterator[Row]:
    """Parts of a fused matrix named one by one: a runtime that asks for the whole finds nothing, and says nothing."""
    if not lists.rule.fused:
        return
    for name, _, parts in fused_groups(modules):
        left = not any(m.quantized for m in parts) and all(all(lists.verdicts(m.name)) for m in parts)
        if left and not all(lists.verdicts(name)):
            yield Row(
                f"{' and '.join(m.name.rpartition('.')[2] for m in parts)} are named one by one ({place.method}): "
                f"SGLang asks for {name.rpartition('.')[2]}, and drops their weights without a word",
                f"{key} has no entry that {name} matches (accepted length exactly 1, sglang#35797)",
                f"add a pattern for the whole head to {key}, or {name!r}",
            )
