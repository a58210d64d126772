"""What `--device` may say, read without torch: to import that takes seconds, and a word that is wrong needs none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from mtptools.errors import UsageError

__all__ = ["DeviceName", "device_names"]

_NAME: Final = re.compile(r"(cpu|cuda)(?::(\d{1,3}))?")
_WHERE: Final = "--device"
_HINT: Final = "--device cpu, or cuda, cuda:1 …"


@dataclass(frozen=True, slots=True)
class DeviceName:
    """kind  "cpu" or "cuda";  number  of the GPU, None for the current one"""

    kind: str
    number: int | None = None

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number}"


def device_names(text: str) -> tuple[DeviceName, ...]:
    """ "cuda:0,cuda:1" as names. Whether there are such devices, `devices.parse` finds out. Raises UsageError."""
    found = tuple(_named(part.strip()) for part in text.split(","))
    if len({name.kind for name in found}) > 1:
        raise UsageError(
            f"{text!r} mixes the CPU with GPUs",
            where=_WHERE,
            hint="name the GPUs alone; --offload keeps layers in the CPU's memory",
        )
    return found


def _named(text: str) -> DeviceName:
    match = _NAME.fullmatch(text)
    if match is None:
        raise _strange(text)
    name = DeviceName(match[1], None if match[2] is None else int(match[2]))
    if name.kind == "cpu" and name.number:
        raise UsageError(f"there is one CPU, and {text!r} is another", where=_WHERE, hint="--device cpu")
    return name


def _strange(text: str) -> UsageError:
    what, hint = f"the decoder does not run on {text!r}", _HINT
    kind, colon, _ = text.partition(":")
    if not text:
        what = f"no device is named: {what}"
    elif colon and kind == "cuda":
        what, hint = f"{what}: GPUs are numbered from 0", "--device cuda:0; nvidia-smi -L lists them"
    elif _NAME.fullmatch(text.lower()):
        hint = f"--device {text.lower()}"
    elif text.lower() == "auto":
        what, hint = f"{what}: no device is chosen for you", "--device cuda, or cpu"
    return UsageError(what, where=_WHERE, hint=hint)
