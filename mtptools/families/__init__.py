"""The known architectures. The folder is the registry: every module with a `FAMILY` in it is one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from mtptools.errors import UnknownFamilyError
from mtptools.families.fields import GENERIC
from mtptools.families.spec import Family, Field, Role, Sign, Source, Wiring

__all__ = [
    "Family",
    "Field",
    "Role",
    "Sign",
    "Source",
    "Wiring",
    "family_named",
    "find_family",
    "generic_family",
    "known_families",
]


@cache
def known_families() -> tuple[Family, ...]:
    """Every family, by name."""
    found = []
    for module in iter_modules(__path__):
        family = getattr(import_module(f"{__name__}.{module.name}"), "FAMILY", None)
        if isinstance(family, Family):
            found.append(family)
    return tuple(sorted(found, key=lambda family: family.name))


def family_named(name: str) -> Family:
    for family in known_families():
        if family.name == name:
            return family
    raise _unknown(name, None)


def find_family(*, gguf_arch: str | None = None, hf_types: Iterable[str] = (), where: object = None) -> Family:
    """The family of a GGUF architecture or of config.json's model types. Raises UnknownFamilyError."""
    types = tuple(dict.fromkeys(hf_types))
    for family in known_families():
        if (gguf_arch and gguf_arch == family.gguf_arch) or set(types) & set(family.hf_types):
            return family
    raise _unknown(gguf_arch or " / ".join(types) or "none stated", where)


def generic_family(gguf_arch: str) -> Family:
    """A GGUF architecture of which only its file is known: its head is moved as it stands, nothing of it is checked."""
    unknown = "not known: nothing here describes this architecture"
    return Family(
        name=gguf_arch,
        title=f"{gguf_arch}, not described here",
        gguf_arch=gguf_arch,
        hf_types=(),
        hf_prefixes=("model.",),
        hf_depth=(),
        hf_head="",
        fields=GENERIC,
        wiring=Wiring("eh", "post", "post", False, unknown),
        head=(),
        generic=True,
    )


def _unknown(name: str, where: object) -> UnknownFamilyError:
    return UnknownFamilyError(
        f"unknown architecture: {name}",
        where=where,
        hint=f"mtptools families lists the {len(known_families())} known ones; a GGUF can be moved with --generic",
    )
