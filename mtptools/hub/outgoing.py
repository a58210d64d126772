"""What of an output is sent to a hub; and that it holds nothing that should stay here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mtptools.errors import CorruptError, NotACheckpointError, UsageError, typed
from mtptools.hub.choose import SPLIT, is_weight, shards_of
from mtptools.hub.mirrors import unregistered
from mtptools.hub.repo import can_be_named

__all__ = ["Outgoing", "gather"]

FOLDER_RECEIPT: Final = "mtptools-receipt.json"
FILE_RECEIPT: Final = ".receipt.json"
_LEFTOVER: Final = re.compile(r".*(\.incomplete|\.partial|\.part|\.tmp|\.lock|\.new|~)", re.IGNORECASE)
_LOCAL: Final = re.compile(r"(?:^|[\s'\"=(,]|file://)((?:~|/[\w.\-]+)/[\w.\-]+|[A-Za-z]:[\\/](?!/)|\\\\\w)")
_SHARD: Final = re.compile(r".+-\d{5}-of-\d{5}\.safetensors")
_INDEX: Final = ".safetensors.index.json"


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
    receipt that names paths of this machine, CorruptError for a missing shard and a receipt that cannot be read.
    """
    if out.is_dir():
        files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if not _folder(path)}
        if not any(is_weight(name) for name in files):
            raise NotACheckpointError("no weights in this folder", where=out, hint="give a folder or file of weights")
        _check_names(out, files)
        _check_indexes(files)
    elif out.is_file() and is_weight(out.name):
        shards = shards_of(out.name, [path.name for path in out.parent.glob("*.gguf")])
        names = [*shards, *(f"{name}{FILE_RECEIPT}" for name in shards)]
        files = {name: out.parent / name for name in names if (out.parent / name).is_file()}
        if _SHARD.fullmatch(out.name):
            raise UsageError("one shard of several", where=out, hint=f"give the folder: {typed(out.parent)}")
    else:
        raise NotACheckpointError(
            "neither a folder nor a weight file" if out.exists() else "no such file or folder",
            where=out,
            hint="give what graft, extract or another verb wrote",
        )
    _check_shards(files)
    for place in sorted({path.parent for path in files.values()}) if out.is_dir() else [out]:
        if (address := unregistered(place)) is not None:
            raise UsageError(
                f"only parts of {address} are here", where=place, hint="extract or strip it, then send that"
            )
    for name, path in files.items():
        if path.name == FOLDER_RECEIPT or name.endswith(FILE_RECEIPT):
            _check_receipt(path)
    return Outgoing(files, {name: path.stat().st_size for name, path in files.items()})


def _folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()  # what a link to a folder holds would stay here without a word


def _check_names(out: Path, files: dict[str, Path]) -> None:
    for name, path in files.items():
        if not can_be_named(name):
            raise UsageError(f"no name for a file of a repo: {name!r}", where=out, hint="rename it")
        if any(part.startswith(".") for part in name.split("/")) or _LEFTOVER.fullmatch(name):
            raise UsageError(f"{name} is hidden, or left over", where=out, hint=f"rm {typed(path)}, or move it away")
        if not path.is_file():
            what = f"{name} is a link that leads nowhere or to a folder, or no file"
            raise UsageError(what, where=out, hint=f"rm {typed(path)}")


def _check_shards(files: dict[str, Path]) -> None:
    """Of a split GGUF all shards go, or none."""
    for name, path in files.items():
        if (match := SPLIT.fullmatch(name)) is not None:
            here, count = len(shards_of(name, files)), int(match["count"])
            if here != count:
                raise CorruptError(f"{here} of {count} shards are here", where=path, hint=_WHOLE)


def _check_indexes(files: dict[str, Path]) -> None:
    """What an index names is in its folder."""
    for name, path in files.items():
        if name.endswith(_INDEX):
            tree = _json(path)
            named = tree.get("weight_map") if isinstance(tree, dict) else None
            shards = set(map(str, named.values())) if isinstance(named, dict) else set()
            gone = sorted(shard for shard in shards if name.removesuffix(path.name) + shard not in files)
            if gone:
                raise CorruptError(f"the index names {gone[0]}, which is not here", where=path, hint=_WHOLE)


_WHOLE: Final = "write the output again, or fetch the others"


def _check_receipt(path: Path) -> None:
    for key, text in _texts(_json(path), ""):
        if (found := _LOCAL.search(text)) is not None:
            raise UsageError(
                f"the receipt names a path of this machine: {found[1]}… in {key}",
                where=path,
                hint="make the output again from paths without folders, or take the path out",
            )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"not readable as JSON ({error})", where=path, hint=_WHOLE) from error


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield f"a key of {key or 'it'}", name
            yield from _texts(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{key}[{number}]")
