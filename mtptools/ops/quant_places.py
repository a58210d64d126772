"""Where quantization configs stand in a checkpoint's files, and what runtimes do with a head besides reading them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mtptools.ops.quant_match import Lists
from mtptools.ops.quant_methods import ALIASES, BUILT, METHODS, SWITCHES, Built, Method, Switch
from mtptools.ops.quant_modules import Module

__all__ = [
    "MODELOPT_FILE",
    "Place",
    "built",
    "knows_method",
    "lists_of",
    "model_types",
    "of_type",
    "places",
    "switched_off",
    "switches",
    "unknown_methods",
]

MODELOPT_FILE: Final = "hf_quant_config.json"
_TEXT: Final = "text_config"
_KEY: Final = "quantization_config"


@dataclass(frozen=True)
class Place:
    """One quantization config of a known method: its table `tree`, the lists `keys` in it, where it stands."""

    where: str
    path: tuple[str, ...]
    method: str
    rule: Method
    tree: Mapping[str, Any]
    keys: tuple[str, ...]

    @property
    def algo(self) -> str:
        return str(self.tree.get("quant_algo") or "").upper()

    @property
    def key(self) -> str:
        return f"{self.where}.{self.keys[0]}"


def _stated(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, Mapping[str, Any]]]:
    """Every quantization_config: the path to it, its method, its table."""
    text = config.get(_TEXT)
    for path, holder in (((_KEY,), config), ((_TEXT, _KEY), text if isinstance(text, dict) else {})):
        tree = holder.get(_KEY)
        if tree is not None:
            method = str(tree.get("quant_method") if isinstance(tree, dict) else tree)
            yield path, ALIASES.get(method.lower(), method), tree if isinstance(tree, dict) else {}


def places(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None) -> list[Place]:
    """The configs that runtimes read: config.json's, and hf_quant_config.json where config.json has no other method."""
    stated = list(_stated(config))
    out = []
    for path, method, tree in stated:
        rule = METHODS.get(method)
        if rule is not None and tree:
            out.append(Place(f"config.json {'.'.join(path)}", path, method, rule, tree, _keys(rule, tree, rule.key)))
    quant = modelopt.get("quantization") if modelopt is not None else None
    if isinstance(quant, dict) and all(method == "modelopt" for _, method, _ in stated):
        rule = METHODS["modelopt"]
        keys = _keys(rule, quant, "exclude_modules")
        out.append(Place(MODELOPT_FILE, ("quantization",), "modelopt", rule, quant, keys))
    return out


def _keys(rule: Method, tree: Mapping[str, Any], default: str) -> tuple[str, ...]:
    """The lists to read: those with something in them, else the one that is there, else the one to write."""
    full = tuple(key for key in rule.keys if tree.get(key))
    return full or tuple(key for key in rule.keys if key in tree)[:1] or (default,)


def unknown_methods(config: Mapping[str, Any]) -> list[str]:
    """Methods of which it is not known here how they leave modules out."""
    return [method for _, method, tree in _stated(config) if method not in METHODS or not tree]


def knows_method(config: Mapping[str, Any]) -> bool:
    """Is it known how this config leaves modules out? True when nothing is quantized."""
    return not unknown_methods(config)


def lists_of(place: Place, types: Sequence[str]) -> Lists:
    return Lists(place.method, place.tree, place.keys, place.where, types)


def model_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    text = config.get(_TEXT)
    inner = text.get("model_type") if isinstance(text, dict) else None
    return tuple(str(t) for t in (config.get("model_type"), inner) if t is not None)


def of_type(types: Sequence[str], starts: tuple[str, ...]) -> bool:
    return any(t.startswith(starts) for t in types)


def built(module: Module, place: Place, types: Sequence[str]) -> Built | None:
    """The row of BUILT that says that a runtime builds this module float."""
    for row in BUILT:
        model = (not row.types or of_type(types, row.types)) and not (row.unless and of_type(types, row.unless))
        method = (not row.methods or place.method in row.methods) and row.algo in ("", place.algo)
        if model and method and re.fullmatch(row.pattern, module.name):
            return row
    return None


def switches(config: Mapping[str, Any]) -> Iterator[tuple[Switch, dict[str, Any], tuple[str, ...], bool]]:
    """Switches of this model: the row, the table it stands in or would, the path to it, whether the head is off."""
    text = config.get(_TEXT)
    for row in SWITCHES:
        if not of_type(model_types(config), row.types):
            continue
        inside = isinstance(text, dict) and row.key not in config
        holder = text if isinstance(text, dict) and inside else dict(config)
        value = holder.get(row.key)
        members = value if row.member and isinstance(value, list) else [value]
        off = {name.upper() for name in row.off}
        yield row, holder, (_TEXT,) if inside else (), any(str(m).upper() in off for m in members)


def switched_off(config: Mapping[str, Any]) -> str | None:
    """The key that takes the whole head out, if one does."""
    return next((row.key for row, _, _, off in switches(config) if off), None)
