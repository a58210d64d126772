"""Matrices of a head that runtimes join to one: they must be stored alike, and some share a scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mtptools.errors import UsageError
from mtptools.families import Role
from mtptools.head import Stored
from mtptools.ops.head_asked import Asked, stored_encoding
from mtptools.ops.head_roles import as_typed, short_names
from mtptools.ops.quant_config import Module, head_modules
from mtptools.ops.quant_pins import joined
from mtptools.plan import Entry
from mtptools.quantized import COMPANIONS, Encoding
from mtptools.quantized.names import value_name
from mtptools.quantized.schemes import FLOAT

__all__ = ["Group", "groups_of", "origin", "require_alike", "sharing"]

Roles = Mapping[str, Sequence[Role]]


@dataclass(frozen=True)
class Group:
    """What a runtime makes one matrix of."""

    name: str
    entries: tuple[Entry, ...]
    roles: tuple[Role, ...]


def origin(one: Stored) -> str:
    """What a matrix is stored in: a type, or an encoding."""
    return (stored_encoding(one) or f"{one.tensor.codec} and scales") if one.scales else one.tensor.codec


def groups_of(entries: Sequence[Entry], roles: Roles) -> list[Group]:
    """All experts of a layer before gate and up of one: what a message tells to type covers the smaller group, too."""
    large = [entry for entry in entries if roles[entry.name][0].kind == "matrix"]
    modules = head_modules({e.name: (e.codec, len(e.source.shape)) for e in large})
    of_module = {_module(entry.name): entry for entry in large if not entry.name.endswith(COMPANIONS)}
    out = []
    for whole, parts in reversed(list(joined(modules))):
        group = tuple(of_module[part] for part in parts)
        held = {role.name: role for entry in group for role in roles[entry.name]}
        out.append(Group(whole, group, tuple(held.values())))
    return out


def _module(name: str) -> str:
    """The module that a weight, or a parameter of all experts, is of."""
    module = value_name(name).removesuffix(".weight")
    return module if module != name else name.rpartition(".")[0]


def require_alike(
    groups: Sequence[Group], roles: Roles, stored: Mapping[str, Stored], chosen: Mapping[str, Encoding], asked: Asked
) -> None:
    """Refuse types that come to differ within what runtimes join to one matrix. Raises UsageError.

    stored  what a tensor of the input belongs to
    chosen  what entries become, of those that get a type
    """

    def becomes(entry: Entry) -> str:
        kind = chosen.get(entry.name)
        if kind is not None:
            return kind.name
        return entry.codec if entry.codec in FLOAT else origin(stored[entry.names[0]])

    for group in groups:
        kinds = {entry.name: becomes(entry) for entry in group.entries}
        if len({"" if kind in FLOAT else kind for kind in kinds.values()}) < 2:
            continue
        if all(entry.passes and chosen.get(entry.name) is None for entry in group.entries):
            continue
        of_role = {role.name: (role, kinds[e.name]) for e in group.entries for role in roles[e.name]}
        named = [kind for role, kind in of_role.values() if asked.names([role])]
        coded = [kind for kind in kinds.values() if kind not in FLOAT]
        raise UsageError(
            f"runtimes join the parts of {group.name}, which must be of one type: "
            f"{', '.join(f'{short_names([role])} {kind}' for role, kind in of_role.values())}",
            where="--role",
            hint=as_typed(group.roles, [*named, *coded][0]),
        )


def sharing(entries: Sequence[Entry], coded: Mapping[str, Encoding]) -> dict[str, list[Entry]]:
    """For each encoded matrix, those that share its second scale: itself, and what runtimes join with it."""
    by_name = {entry.name: entry for entry in entries if entry.name in coded}
    out = {name: [entry] for name, entry in by_name.items()}
    for _, parts in joined([Module(name.removesuffix(".weight"), True) for name in by_name], experts=False):
        together = [by_name[f"{part}.weight"] for part in parts]
        if all(coded[entry.name].shared for entry in together):
            out |= {entry.name: together for entry in together}
    return out
