"""Which roles a tensor of a head holds: one as a rule, several where a dialect joins them (gate and up, k and v)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mtptools.checkpoint import Checkpoint
from mtptools.conventions import LAYOUTS
from mtptools.families import Family, Role
from mtptools.families.blocks import GGUF_FUSED
from mtptools.head import Head
from mtptools.ops.render import Place, place_of
from mtptools.plan import Entry

__all__ = ["as_typed", "canonical", "roles_of", "short_names"]


def canonical(role: Role, family: Family) -> list[Role]:
    """The roles that a fused tensor of GGUF holds, as the family has them; any other role by itself."""
    known = {one.name: one for one in family.head}
    parts = GGUF_FUSED.get(role.name, ())
    if role.name in known or not parts or not all(name in known for name in parts):
        return [role]
    return [known[name] for name in parts]


def roles_of(entries: Sequence[Entry], heads: Sequence[Head], trunk: Checkpoint) -> dict[str, tuple[Role, ...]]:
    """Name of an entry -> the roles it holds; entries are made of `heads` and named as in `trunk`."""
    place = place_of(trunk, len(heads))
    held: dict[str, dict[str, Role]] = {}
    for found in (found for head in heads for found in head.roles.values()):
        for name in found.names:
            held.setdefault(name, {}).update({one.name: one for one in canonical(found.role, trunk.family)})
    spelled: dict[str, set[str]] = {}
    out = {}
    for entry in entries:
        roles: Mapping[str, Role] = {key: role for name in entry.names for key, role in held[name].items()}
        if len(roles) > 1:  # of a tensor that held them all, this may be one part
            for key, role in roles.items():
                if key not in spelled:
                    spelled[key] = set(_spelled(role, place))
            roles = {key: role for key, role in roles.items() if entry.name in spelled[key]} or roles
        out[entry.name] = tuple(roles.values())
    return out


def _spelled(role: Role, place: Place) -> Iterator[str]:
    """Every name that the role's tensors may have in a place."""
    for source in role.sources(place.dialect):
        experts = range(place.hparams.n_experts) if LAYOUTS[source.layout].per_expert else (0,)
        for pattern in (source.pattern, *source.also):
            for layer in range(len(place.layers)):
                yield from (place.spelled(pattern, layer, expert) for expert in experts)


def short_names(roles: Sequence[Role]) -> str:
    """Of roles, as --role takes them."""
    return ", ".join(role.name.removesuffix(".weight") for role in roles)


def as_typed(roles: Sequence[Role], kind: str) -> str:
    """What to type so that all of these have one type."""
    return " ".join(f"--role {short_names([role])}={kind}" for role in roles)
