"""What was asked of the matrices of a head in safetensors, as encodings that runtimes read beside the trunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from mtptools.checkpoint import Checkpoint
from mtptools.errors import UsageError
from mtptools.families import Role
from mtptools.head import Found, Stored
from mtptools.ops.head_roles import as_typed, short_names
from mtptools.ops.quant_fit import Fit, encoding_for, fit_of
from mtptools.ops.style import Style
from mtptools.plan import Entry
from mtptools.quantized import Encoding, block_of, encoding_of, mlx_layout

__all__ = ["EXPERTS", "TYPED", "Asked", "stored_encoding"]

EXPERTS: Final = "_exps.weight"
TYPED: Final = ("matrix", "embedding", "output")  # kinds of roles that a float type is asked for
_WILD: Final = frozenset("*?[")


def stored_encoding(one: Stored) -> str | None:
    """Name of the encoding a weight is stored in, None for one that is not written here."""
    layout = mlx_layout(one.config, one.tensor.name.removesuffix(".weight")) if ".scales" in one.scales else None
    return encoding_of(one.tensor, one.scales, block=block_of(one.config), layout=layout)


@dataclass(frozen=True)
class Asked:
    """option  where the type of the matrices was typed"""

    style: Style
    trunk: Checkpoint
    fit: Fit | None
    option: str

    @classmethod
    def of(cls, style: Style, trunk: Checkpoint, option: str) -> Asked:
        return cls(style, trunk, fit_of(trunk) if trunk.dialect == "hf" else None, option)

    def wanted(self, role: Role) -> Encoding | None:
        """The encoding of a role, None where nothing was asked of it. Raises UsageError, CodecError."""
        text = self.style.wanted(role.name) if role.kind in TYPED else None
        if text is None:
            return None
        found = encoding_for(text, self.trunk, self.fit, self.option if text == self.style.matrices else "--role")
        if found.is_float or role.kind == "matrix":
            return found
        if not self.names([role]):
            return None
        if self.trunk.dialect == "mlx":
            return found
        raise UsageError(
            f"{short_names([role])} is no matrix that runtimes quantize", where="--role", hint="leave it out"
        )

    def of_entry(self, entry: Entry, roles: Sequence[Role], *, coded: bool) -> Encoding | None:
        """The same of a tensor that may hold several roles. Raises UsageError where they want different things.

        coded  the input has it quantized, so that without a wish it stays something else than the floats of `entry`
        """
        wanted = [self.wanted(role) for role in roles]
        first = next((one for one in wanted if one is not None), None)
        kinds = [one.name if one is not None else "as it was" if coded else entry.codec for one in wanted]
        if first is None or len(set(kinds)) == 1:
            return first
        few = ", ".join(f"{short_names([role])} {kind}" for role, kind in zip(roles, kinds, strict=True))
        raise UsageError(
            f"{entry.name} is one tensor, and so of one type: {few}",
            where="--role",
            hint=as_typed(roles, first.name),
        )

    def names(self, roles: Sequence[Role]) -> bool:
        """Does a pattern of --role name one of these roles and no other?"""
        single = [pattern for pattern, _ in self.style.roles if not _WILD & set(pattern)]
        return any(fnmatchcase(short_names([role]), pattern) for role in roles for pattern in single)

    def is_stored(self, found: Found, *, keeps: bool) -> bool:
        """Is a role stored as it is wanted?

        keeps  a quantized one without a wish may stay as it is
        """
        wanted = self.wanted(found.role)
        if self.style.experts is not None and found.role.name.endswith(EXPERTS):
            return False
        if wanted is None:
            return not found.scaled or keeps
        if wanted.is_float:
            return not found.scaled
        return all(stored_encoding(one) == wanted.name for one in found.stored)
