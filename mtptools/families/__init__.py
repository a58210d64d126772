"""The known architectures. The folder is the registry: every module with a `FAMILY` in it is one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from mtptools.errors import UnknownFamilyError
from mtptools.families.spec import Family, Field, Role, Source, Wiring

__all__ = ["Family", "Field", "Role", "Source", "Wiring", "family_named", "find_family", "known_families"]


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
    types = tuple(hf_types)
    for family in known_families():
        if gguf_arch == family.gguf_arch or set(types) & set(family.hf_types):
            return family
    raise _unknown(gguf_arch or " / ".join(types) or "none stated", where)


def _unknown(name: str, where: object) -> UnknownFamilyError:
    known = ", ".join(f"{family.name} ({family.title})" for family in known_families())
    return UnknownFamilyError(
        f"unknown architecture: {name}", where=where, hint=f"known families: {known}; see mtptools families"
    )
