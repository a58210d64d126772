"""Every error a user can meet. Each says what, where, and the next thing to type.

    MtpToolsError
    ├── UsageError              2   the command line asks for something that cannot be
    ├── InputError              3   the input is not what it should be
    │   ├── NotACheckpointError     no checkpoint at that path
    │   ├── CorruptError            header lies, file truncated, shard missing
    │   ├── UnknownFamilyError      architecture without a family file
    │   ├── MissingHeadError        no head where one is needed
    │   ├── MissingRoleError        a head, or a trunk, lacks a required tensor
    │   ├── ConventionError         the convention of stored values cannot be established
    │   └── TokenizerError          no tokenizer, or one that does not fit
    ├── IncompatibleError       4   trunk and donor do not belong together (all findings)
    ├── CodecError              5   cannot encode, cannot decode, or would lose
    ├── OutputExistsError       6   the output is already there
    ├── SystemFailure           7   disk, memory, network, a missing optional package
    │   └── MissingExtraError       an optional dependency is not installed
    └── NoDecoderError          8   the decoder has no formulas for the architecture: what was asked was not checked

Exit code 1 is not an error: a check ran to its end and its answer is "no".
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

__all__ = [
    "CodecError",
    "ConventionError",
    "CorruptError",
    "IncompatibleError",
    "InputError",
    "MissingExtraError",
    "MissingHeadError",
    "MissingRoleError",
    "MtpToolsError",
    "NoDecoderError",
    "NotACheckpointError",
    "OutputExistsError",
    "SystemFailure",
    "TokenizerError",
    "UnknownFamilyError",
    "UsageError",
    "typed",
]


def typed(path: object) -> str:
    """A path as it is typed into a shell."""
    return shlex.quote(str(path))


class MtpToolsError(Exception):
    """Base class. `where` is a path, a tensor or a key; `hint` is what to type or do next."""

    exit_code: ClassVar[int] = 3

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint
        super().__init__(what if self.where is None else f"{self.where}: {what}")


class UsageError(MtpToolsError):
    exit_code = 2


class InputError(MtpToolsError):
    exit_code = 3


class NotACheckpointError(InputError):
    pass


class CorruptError(InputError):
    pass


class UnknownFamilyError(InputError):
    pass


class MissingHeadError(InputError):
    @classmethod
    def to_draft_with(cls, where: object, declared: int) -> MissingHeadError:
        """declared  layers that the configuration promises"""
        told = (
            f"no head: the configuration declares {declared} MTP layer(s), their tensors are not there"
            if declared
            else "no head in this checkpoint, and none declared"
        )
        return cls(told, where=where, hint=f"mtptools graft {typed(where)} DONOR -o OUT")


class MissingRoleError(InputError):
    pass


class ConventionError(InputError):
    pass


class TokenizerError(InputError):
    pass


class IncompatibleError(MtpToolsError):
    """Trunk and donor do not belong together. `findings` holds every reason, not only the first."""

    exit_code = 4

    def __init__(self, what: str, findings: Sequence[str], *, where: object = None, hint: str | None = None) -> None:
        self.findings = tuple(findings)
        super().__init__(what, where=where, hint=hint)


class CodecError(MtpToolsError):
    exit_code = 5


class OutputExistsError(MtpToolsError):
    exit_code = 6


class SystemFailure(MtpToolsError):
    exit_code = 7


class NoDecoderError(MtpToolsError):
    """Decoding was asked for and cannot be done: neither a pass nor a failure."""

    exit_code = 8


class MissingExtraError(SystemFailure):
    """An optional package is needed; the hint is the pip line that brings it."""

    def __init__(self, package: str, extra: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the package {package}", hint=f"pip install 'mtptools[{extra}]'")
