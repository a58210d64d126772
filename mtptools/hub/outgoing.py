"""What of an output is sent to a hub; and that it holds nothing that should stay here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mtptools.errors import CorruptError, NotACheckpointError, UsageError, typed
from mtptools.hub.choose import is_weight, shards_of
from mtptools.hub.mirrors import unregistered

__all__ = ["Outgoing", "gather"]

FOLDER_RECEIPT: Final = "mtptools-receipt.json"
FILE_RECEIPT: Final = ".receipt.json"
_LEFTOVER: Final = re.compile(r".*(\.incomplete|\.partial|\.part|\.tmp|\.lock|\.new|~)", re.IGNORECASE)
_LOCAL: Final = re.compile(r"(?:^|[\s'\"=(,])((?:~|/[\w.\-]+)/[\w.\-]+|[A-Za-z]:\\|\\\\\w)")


@dataclass(frozen=True)
class Outgoing:
    """Files by the path they get in the repo, with their bytes here."""

    files: dict[str, Path]
    sizes: dict[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.sizes.values())

    def to_json(self) -> dict[str, Any]:
        return {"files": [{"name": n, "bytes": size} for n, size in self.sizes.items()], "bytes": self.nbytes}


def gather(out: Path) -> Outgoing:
    """All files of a folder; or a weight file, the other shards of a split one, and its receipt.

    Raises NotACheckpointError when that is no model, UsageError for leftovers of a run that did not end and for a
    receipt that names paths of this machine, CorruptError for a receipt that cannot be read.
    """
    if out.is_dir():
        files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if not path.is_dir()}
        if not any(is_weight(name) for name in files):
            raise NotACheckpointError("no weights in this folder", where=out, hint="give a folder or file of weights")
        _check_names(out, files)
    elif out.is_file() and is_weight(out.name):
        shards = shards_of(out.name, [path.name for path in out.parent.glob("*.gguf")])
        names = [*shards, *(f"{name}{FILE_RECEIPT}" for name in shards)]
        files = {name: out.parent / name for name in names if (out.parent / name).is_file()}
        _check_shards(out, shards)
    else:
        raise NotACheckpointError(
            "neither a folder nor a weight file" if out.exists() else "no such file or folder",
            where=out,
            hint="give what graft, extract or another verb wrote",
        )
    for name, path in files.items():
        if is_weight(name) and (address := unregistered(path)) is not None:
            raise UsageError("only parts of this file are here", where=path, hint=f"it mirrors {address}")
        if name == FOLDER_RECEIPT or name.endswith(FILE_RECEIPT):
            _check_receipt(path)
    return Outgoing(files, {name: path.stat().st_size for name, path in files.items()})


def _check_names(out: Path, files: dict[str, Path]) -> None:
    for name, path in files.items():
        if any(part.startswith(".") for part in name.split("/")) or _LEFTOVER.fullmatch(name):
            raise UsageError(f"{name} is hidden, or left over", where=out, hint=f"rm {typed(path)}, or move it away")
        if not path.is_file():
            raise UsageError(f"{name} is a link that leads nowhere, or no file", where=out, hint=f"rm {typed(path)}")


def _check_shards(out: Path, shards: list[str]) -> None:
    count = int(out.name[-10:-5]) if len(shards) > 1 or "-of-" in out.name else 1
    if len(shards) != count:
        raise CorruptError(
            f"{len(shards)} of {count} shards are here", where=out, hint="write the output again, or fetch the others"
        )


def _check_receipt(path: Path) -> None:
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptError(f"the receipt is not readable as JSON ({error})", where=path) from error
    for key, text in _texts(record, ""):
        if (found := _LOCAL.search(text)) is not None:
            raise UsageError(
                f"the receipt names a path of this machine: {found[1]}… in {key}",
                where=path,
                hint="make the output again from paths without folders, or take the path out",
            )


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{key}[{number}]")
