"""Entries that leave a head's float modules out of quantization, and no quantized one: the edits of its configs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mtptools.errors import CorruptError
from mtptools.ops.quant_match import Lists, spellings
from mtptools.ops.quant_methods import LITERALS, Method, Switch
from mtptools.ops.quant_modules import Module, experts_of, fused_groups, lift, root_of, tail_of
from mtptools.ops.quant_places import (
    MODELOPT_FILE,
    Place,
    built,
    lists_of,
    model_types,
    of_type,
    places,
    switched_off,
    switches,
)

__all__ = ["cover", "cover_modelopt", "entries_for"]


def entries_for(place: Place, lists: Lists, modules: Sequence[Module], types: Sequence[str]) -> list[str]:
    """What to add so that exactly the float modules are left out; fewest first."""
    rule = lists.rule

    def needed(module: Module) -> bool:
        row = built(module, place, types)
        freed = row is not None and row.everywhere and row.silent
        return not module.quantized and not freed and not lists.leaves_out(module.name)

    wanted = [m for m in modules if needed(m)]
    for name, _, parts in fused_groups(modules) if rule.fused else ():
        if not any(m.quantized for m in parts) and not lists.leaves_out(name):
            wanted += [Module(name, False), *(m for m in parts if m not in wanted)]

    def others(name: str) -> list[str]:
        return [other for other, row in spellings(name, types, place.method) if row.rewrite is None]

    if not rule.tree:
        names = [experts_of(m.name) or m.name for m in wanted]
        return list(dict.fromkeys([*names, *(other for name in names for other in others(name))]))
    trees, leaves = lift(wanted, [m for m in modules if m.quantized])
    literal = [row.entry for row in LITERALS if of_type(types, row.types) and place.keys[0] in row.keys]
    out = [_entry(t, n) for name in trees for t in (*rule.tree, *literal) for n in (name, *others(name))]
    out += [_entry(t, n) for name in leaves for t in rule.leaf for n in (name, *others(name))]
    experts = [experts_of(m.name) for m in wanted] if rule.experts else []
    out += [rule.experts.format(name=name) for name in experts if name is not None]
    return list(dict.fromkeys(out))


def _entry(template: str, name: str) -> str:
    if experts_of(name) == name:  # runtimes ask for the fused experts themselves, too
        for key in ("{tail}", "{stem}"):
            template = template.replace(rf"{key}\.", key)
        template = template.replace("{name}.", "{name}")
    tail = tail_of(name)
    layer = re.match(r"layers\.\d+(?=\.|$)", tail) if f"model.{tail}" in name else None
    stem = f"model.{layer[0]}{re.escape(tail[layer.end() :])}" if layer is not None else re.escape(tail)
    at = "^" if name == tail and tail.startswith("mtp") else ".*"
    return template.format(name=name, plain=tail, tail=re.escape(tail), stem=stem, at=at)


def _of_the_head(item: str, roots: set[str]) -> bool:
    """Does an entry speak of the head alone? By the head's own part of its names, in each of its alternatives."""
    named = [re.compile(rf"(?<!\w){re.escape(tail_of(root))}(?!\w)") for root in roots]

    def alone(pattern: str) -> bool:
        return all(_names(one, named) or any(alone(group) for group in _groups(one)) for one in _alternatives(pattern))

    return alone(item.replace("\\", ""))


def _names(alternative: str, named: Sequence[re.Pattern[str]]) -> bool:
    """Does it name the head, outside of groups that offer a choice?"""
    for group in _groups(alternative):
        if len(_alternatives(group)) > 1:
            alternative = alternative.replace(f"({group})", " ")
    return any(root.search(alternative) for root in named)


def _alternatives(pattern: str) -> list[str]:
    """The parts between `|`, those within brackets left whole."""
    out, depth = [""], 0
    for char in pattern:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            out.append("")
        else:
            out[-1] += char
    return out


def _groups(pattern: str) -> list[str]:
    """What stands in the outermost brackets."""
    out: list[str] = []
    depth = 0
    for char in pattern:
        depth -= char == ")"
        if depth > 0:
            out[-1] += char
        elif char == "(":
            out.append("")
        depth += char == "("
    return out


def _covered(place: Place, modules: Sequence[Module], types: Sequence[str], facts: list[str]) -> dict[str, Any]:
    """The config of one place with what is stale taken out and what is missing put in."""
    tree = dict(place.tree)
    lists = lists_of(place, types)
    quantized = [m.name for m in modules if m.quantized]
    quantized += [o for name in quantized for o, row in spellings(name, types, place.method) if row.rewrite is None]
    roots = {root_of(m.name) for m in modules}
    for key in place.keys:
        stale = [i for i in lists.items(key) if _of_the_head(i, roots) and lists.touching(i, quantized)]
        if stale:
            tree[key] = _without(tree[key], stale)
            facts.append(f"{place.where}.{key} loses {', '.join(map(repr, stale))}: the head is quantized there")
    now = replace(place, tree=tree)
    added = entries_for(now, lists_of(now, types), modules, types)
    for key in place.keys if added else ():
        tree[key] = _with(tree.get(key), added, lists.rule)
        few = ", ".join(map(repr, added[:3])) + (f" and {len(added) - 3} more" if len(added) > 3 else "")
        facts.append(f"{place.where}.{key} gains {few}: not quantized in the head")
    return tree


def _without(value: Any, items: Sequence[str]) -> Any:
    if isinstance(value, dict):
        return {key: inner for key, inner in value.items() if key not in items}
    return [item for item in value if str(item) not in items]


def _with(value: Any, items: Sequence[str], rule: Method) -> Any:
    kind = "list" if rule.value is None else "table"
    if value is not None and not isinstance(value, list if rule.value is None else dict):
        raise CorruptError(
            f"quantization_config leaves modules out by {value!r}, which is not a {kind}",
            where="config.json",
            hint="take config.json from the release again",
        )
    if rule.value is None:
        return [*(value or ()), *items]
    table: dict[str, Any] = dict(value or {})
    fresh: dict[str, Any] = {item: dict(rule.value) for item in items}
    return {**fresh, **table} if rule.first else {**table, **fresh}


def _put(tree: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = _put(tree[path[0]], path[1:], value) if len(path) > 1 else value
    return {**tree, path[0]: inner}


def cover(config: dict[str, Any], modules: Sequence[Module], facts: list[str]) -> dict[str, Any]:
    """config.json that leaves out the head's float modules and no quantized one; unchanged where it does already.

    Edits quantization_config where it stands, in text_config too, in its method's own syntax. A method that is not
    known is left alone. What cannot be expressed (an entry for trunk and head together) is left, and `judge` says so.
    """
    out, found = config, places(config, None)
    any_float, any_quantized = (any(m.quantized is q for m in modules) for q in (False, True))
    if not found or not modules:
        return config
    for row, holder, path, off in switches(config):
        if any_quantized if off else any_float and not any_quantized:
            value = _switch(row, holder.get(row.key), on=off)
            kept = {key: inner for key, inner in holder.items() if key != row.key}
            changed = kept if value is None else {**kept, row.key: value}
            out = _put(out, path, changed) if path else changed
            facts.append(f"config.json {row.key} is {value!r}: the head is {'quantized' if off else 'float'}")
    if switched_off(out) is not None:
        return out
    for place in found:
        tree = _covered(place, modules, model_types(config), facts)
        if tree != place.tree:
            out = _put(out, place.path, tree)
    return out


def _switch(row: Switch, value: Any, *, on: bool) -> Any:
    """The value that says "as the trunk" (None: leave the key out), or "float"."""
    if row.member:
        rest = [item for item in value if item not in row.off] if isinstance(value, list) else []
        return (rest or None) if on else [*rest, row.off[0]]
    return None if on else row.off[0]


def cover_modelopt(
    modelopt: Mapping[str, Any], config: Mapping[str, Any], modules: Sequence[Module], facts: list[str]
) -> dict[str, Any]:
    """hf_quant_config.json, ModelOpt's second place for the same list; unchanged where config.json has another method.

    config  config.json beside it
    """
    for place in places(config, modelopt):
        if place.where == MODELOPT_FILE and modules and switched_off(config) is None:
            return _put(modelopt, place.path, _covered(place, modules, model_types(config), facts))
    return dict(modelopt)
