"""What the lists of one quantization config say of a module, as each runtime reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final

from mtptools.errors import CorruptError
from mtptools.ops.quant_methods import METHODS, SPELLINGS, Reader, Spelling
from mtptools.ops.quant_modules import experts_of

__all__ = ["Lists", "spellings"]

Predicate = Callable[[str], bool]
_FLOAT_BITS: Final = 16


def _never(_: str) -> bool:
    return False


def _regex(pattern: str, *, full: bool = False) -> Predicate:
    try:
        compiled = re.compile(pattern)
    except re.error:  # runtimes skip it, or fail before any of this matters
        return _never
    found = compiled.fullmatch if full else compiled.match
    return lambda name: found(name) is not None


def _equal_or_regex(item: str) -> Predicate:
    return _regex(item[3:]) if item.startswith("re:") else (lambda name: name == item)


def _suffix(item: str) -> Predicate:
    equal = _equal_or_regex(item)
    return lambda name: equal(name) or (not item.startswith("re:") and name.endswith(f".{item}"))


def _path(item: str) -> Predicate:
    inside = f".{item.rstrip('.')}."
    return lambda name: inside in f".{name}."


def _path_experts(item: str) -> Predicate:
    match, exact = _path(item), _exact(item)
    return lambda name: match(name) or exact(name)


def _parts(item: str) -> Predicate:
    match = _regex(item.replace(".", r"\.").replace("*", ".*"), full=True)
    if "." in item:  # no part of a name has one
        return match
    return lambda name: match(name) or any(match(part) for part in name.split("."))


def _glob(item: str) -> Predicate:
    return _regex(translate(item)) if any(c in item for c in "*?[") else _path(item)


def _exact(item: str) -> Predicate:
    return lambda name: name == item or (experts_of(name) == name and name in item)


def _prefix(item: str) -> Predicate:
    return lambda name: name == item or name.startswith(f"{item}.") or item in name.split(".")


def _dynamic(item: str) -> Predicate:
    return _regex(item[2:] if item.startswith(("-:", "+:")) else item)


def _dynamic_mtp(item: str) -> Predicate:
    """vLLM's Qwen heads: a key "-:" with mtp in it means the whole of them."""
    match, whole = _dynamic(item), item.startswith("-:") and "mtp" in item
    return lambda name: match(name) or (whole and "mtp" in name.split("."))


def _layers(item: str) -> Predicate:
    match = _regex(item, full=True)
    return lambda name: name == item or match(name)


def _quark(item: str) -> Predicate:
    match, glob = _equal_or_regex(item), _regex(translate(item))
    return lambda name: match(name) or glob(name)


_READERS: Final[Mapping[str, Callable[[str], Predicate]]] = {
    "exact": _exact,
    "path": _path,
    "path_experts": _path_experts,
    "regex": _equal_or_regex,
    "suffix": _suffix,
    "glob": _glob,
    "parts": _parts,
    "substring": lambda item: lambda name: item in name,
    "prefix": _prefix,
    "dynamic": _dynamic,
    "dynamic_mtp": _dynamic_mtp,
    "layers": _layers,
    "quark": _quark,
    "start": lambda item: lambda name: f"{name}.".startswith(f"{item.rstrip('.')}."),
    "within": lambda item: lambda name: item in name,
    "targets": lambda item: _equal_or_regex(item) if item.startswith("re:") or "." in item else (lambda _: True),
}


def spellings(name: str, model_types: Sequence[str], method: str) -> Iterator[tuple[str, Spelling]]:
    """Other names under which a runtime looks `name` up."""
    for row in SPELLINGS:
        model = not row.types or any(t.startswith(row.types) for t in model_types)
        match = re.fullmatch(row.pattern, name) if model and method in (row.methods or (method,)) else None
        if match is not None:
            yield match.expand(row.becomes), row


def _rewritten(item: str, row: Spelling) -> str:
    if row.rewrite is None or (row.start and not item.startswith(row.rewrite[0])):
        return item
    return item.replace(*row.rewrite)


@dataclass(frozen=True)
class _Entry:
    item: str
    out: bool  # leaves the module out; False: gives it a quantization of its own
    hit: Predicate


class Lists:
    """The lists of one quantization config."""

    def __init__(
        self, method: str, tree: Mapping[str, Any], keys: Sequence[str], where: str, types: Sequence[str]
    ) -> None:
        rule = METHODS[method]
        self.method, self.rule, self.tree, self.keys, self.where, self.types = method, rule, tree, keys, where, types
        given = [(only, _members(tree[only.key], only.key, where)) for only in rule.only if tree.get(only.key)]
        # An empty list of targets is nothing at all; of other lists it is the same as none.
        given = [(only, items) for only, items in given if items or only.syntax == "targets"]
        self._only = [[_READERS[only.syntax](item) for item in items] for only, items in given]
        self._read = self._readers(None)
        self._renamed: dict[Spelling, list[tuple[Reader, list[_Entry]]]] = {}

    def items(self, key: str) -> list[str]:
        return stated(self.tree.get(key), self.where)

    def _readers(self, row: Spelling | None) -> list[tuple[Reader, list[_Entry]]]:
        return [(reader, self._entries(key, reader, row)) for key in self.keys for reader in self.rule.readers]

    def _entries(self, key: str, reader: Reader, row: Spelling | None) -> list[_Entry]:
        table, out = self.tree.get(key), []
        for item in self.items(key):
            away = True
            if reader.syntax == "layers":
                away = _is_float(table.get(item) if isinstance(table, dict) else None)
            elif reader.syntax.startswith("dynamic"):
                away = item.startswith("-:")
            seen = item if row is None else _rewritten(item, row)
            out.append(_Entry(item, away, _READERS[reader.syntax](seen)))
        if reader.syntax != "layers":
            return out
        return sorted(out, key=lambda e: bool(re.search(r"[*+?^$()\[\]{}|\\]", e.item)))  # names before expressions

    def _outside(self, name: str) -> bool:
        """Is it not among what is quantized at all?"""
        return any(not any(hit(name) for hit in only) for only in self._only)

    def verdicts(self, name: str) -> list[bool]:
        """Is the module left out? One answer for each list and reader, by the checkpoint's name."""
        if self._outside(name):
            return [True]
        return [self._out(entries, reader, name) for reader, entries in self._read]

    def renamed(self, name: str) -> Iterator[tuple[bool, Spelling]]:
        """The same for each other name a runtime has for it."""
        for other, row in () if self._outside(name) else spellings(name, self.types, self.method):
            if row not in self._renamed:
                self._renamed[row] = self._readers(row)
            yield all(self._out(entries, reader, other) for reader, entries in self._renamed[row]), row

    def leaves_out(self, name: str) -> bool:
        """Do all lists, readers and spellings leave it out?"""
        return all(self.verdicts(name)) and all(out for out, _ in self.renamed(name))

    def _out(self, entries: Sequence[_Entry], reader: Reader, name: str) -> bool:
        fused = experts_of(name)
        if fused is None:
            return _first(entries, name)
        if reader.experts == "fused":
            return _first(entries, fused)
        own = _first(entries, f"{name}.0.gate_proj" if name == fused else name)
        if reader.experts == "both":
            return own and _first(entries, fused)
        return own or _first(entries, fused)

    def touching(self, item: str, names: Sequence[str]) -> bool:
        """Does this entry, alone, leave any of the modules out for any reader?"""
        for reader in self.rule.readers:
            entry = [_Entry(item, True, _READERS[reader.syntax](item))]
            loose = Reader(reader.syntax)
            if any(self._out(entry, loose, name) for name in names):
                return True
        return False


def _first(entries: Sequence[_Entry], name: str) -> bool:
    return next((e.out for e in entries if e.hit(name)), False)


def _is_float(value: object) -> bool:
    bits = value.get("bits") if isinstance(value, dict) else None
    return isinstance(bits, int) and bits >= _FLOAT_BITS


def stated(value: object, where: str) -> list[str]:
    """Entries of a list or table. Raises CorruptError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list | dict):
        raise CorruptError(
            f"the modules left out are {value!r}, which is neither a list nor a table",
            where=where,
            hint="take the file from the release again",
        )
    return [str(item) for item in value]


def _members(value: object, key: str, where: str) -> list[str]:
    """Entries of a list of what is quantized: names, comma-separated names, lists of them, keys, or targets."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if key == "config_groups":
        groups = [group for group in value.values() if isinstance(group, dict)] if isinstance(value, dict) else []
        return [item for group in groups for item in stated(group.get("targets"), where)]
    flat: list[str] = []
    for item in value if isinstance(value, list) else stated(value, where):
        flat += stated(item, where) if isinstance(item, list) else [str(item)]
    return flat
