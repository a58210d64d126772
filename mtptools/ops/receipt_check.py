"""Does an output still hold what its receipt says? Tensor by tensor, file by file; and are these its sources?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import xxhash

from mtptools.checkpoint import Checkpoint
from mtptools.errors import CorruptError
from mtptools.receipt import identity
from mtptools.tensors import Tensor, read_blob

__all__ = ["Finding", "check_inside", "check_parts", "check_receipt", "check_sources"]

State = Literal["same", "changed", "missing", "extra", "linked", "not checked"]
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """kind  "tensor", "file" or "source"

    state  "linked": the file it is in has the size and header it had; its data has no digest
    """

    kind: str
    name: str
    state: State
    what: str = ""

    @property
    def bad(self) -> bool:
        return self.state in ("changed", "missing", "extra")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.state}" + (f": {self.what}" if self.what else "")


def check_parts(record: Mapping[str, Any], where: object) -> None:
    """The parts that a receipt may have, and need not: each is what it should be. Raises CorruptError."""
    for source in record["sources"]:
        files, origin = source.get("files", []), source.get("origin", {})
        if not (isinstance(files, list) and all(map(_is_file, files)) and isinstance(origin, dict)):
            raise _damaged("sources", where)
    for key in ("facts", "files"):
        names = record.get(key, [])
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise _damaged(key, where)
    kept = record.get("verification") or {}
    if not (isinstance(kept, dict) and isinstance(kept.get("failures") or [], list)):
        raise _damaged("verification", where)


def _is_file(row: Any) -> bool:
    told = row if isinstance(row, dict) else {}
    size, words = told.get("bytes"), (told.get("name"), told.get("header_sha256"))
    return isinstance(size, int) and 0 <= size < 1 << 63 and all(isinstance(word, str) for word in words)


def _damaged(key: str, where: object) -> CorruptError:
    return CorruptError(
        f"not a receipt of mtptools: {key} is not what it should be",
        where=where,
        hint="make the output again: graft, extract and strip write a new receipt",
    )


def check_receipt(ckpt: Checkpoint, record: Mapping[str, Any], progress: Progress = lambda n: None) -> list[Finding]:
    """Every tensor against the receipt beside it (`receipt.load_beside`), and the files it lists. Reads every byte."""
    linked = _linked_names(ckpt, record)
    found = [_tensor(ckpt, row, linked, progress) for row in record["tensors"]]
    stated = {row["name"] for row in record["tensors"]}
    found += [Finding("tensor", name, "extra", "the receipt does not name it") for name in ckpt if name not in stated]
    return [*found, *_files(ckpt, record)]


def check_inside(ckpt: Checkpoint, record: Mapping[str, Any], progress: Progress = lambda n: None) -> list[Finding]:
    """The head's tensors against the short receipt inside (`receipt.load_inside`); of the trunk it says nothing."""
    rows = [{"name": name, "sha256": value} for name, value in record["head_sha256"].items()]
    found = [_tensor(ckpt, row, frozenset(), progress) for row in rows]
    stated = set(record["head_sha256"])
    rest = [name for name in ckpt if name not in stated]
    return [*found, *(Finding("tensor", name, "not checked", "the receipt inside covers the head") for name in rest)]


def _linked_names(ckpt: Checkpoint, record: Mapping[str, Any]) -> frozenset[str]:
    """Tensors of the files whose size and header are those of a file that was linked, under whatever name."""
    known = {(file["bytes"], file["header_sha256"]) for file in record["linked"]}
    return frozenset(name for file in ckpt.files if known and identity(file) in known for name in file.names)


def _tensor(ckpt: Checkpoint, row: Mapping[str, Any], linked: frozenset[str], progress: Progress) -> Finding:
    name = row["name"]
    if name not in ckpt:
        return Finding("tensor", name, "missing")
    if row.get("linked") is True:
        if name in linked:
            return Finding("tensor", name, "linked")
        return Finding("tensor", name, "changed", "it was linked, and no file has the size and header of that one")
    tensor = ckpt[name]
    wrong = []
    if "type" in row and row["type"] != tensor.codec:
        wrong.append(f"type {tensor.codec}, the receipt says {row['type']}")
    fast, slow = _digests(tensor, "sha256" in row, progress)
    for key, value in (("xxh3_128", fast), ("sha256", slow)):
        if key in row and row[key] != value:
            wrong.append(f"{key} {value}, the receipt says {row[key]}")
    return Finding("tensor", name, "changed" if wrong else "same", "; ".join(wrong))


def _digests(tensor: Tensor, both: bool, progress: Progress) -> tuple[str, str]:
    """xxh3-128, and sha256 where it is asked for, of one reading."""
    fast, slow = xxhash.xxh3_128(), hashlib.sha256()
    for blob in tensor.chunks():
        data = read_blob(blob, tensor.name)
        fast.update(data)
        if both:
            slow.update(data)
        progress(len(data))
    return fast.hexdigest(), slow.hexdigest()


def _files(ckpt: Checkpoint, record: Mapping[str, Any]) -> Iterator[Finding]:
    """Files that are listed and not there. A folder may hold more: a README is no fault."""
    listed = [name for name in record.get("files") or () if isinstance(name, str)]
    if ckpt.path.is_dir():
        there = {path.relative_to(ckpt.path).as_posix() for path in ckpt.path.rglob("*") if path.is_file()}
    elif len(listed) > 1:  # shards, which carry their number in their name
        there = {file.path.name for file in ckpt.files}
    else:
        return  # one file, whatever it is called now
    for name in listed:
        yield Finding("file", name, "same" if name in there else "missing")


def check_sources(record: Mapping[str, Any], given: Sequence[Checkpoint]) -> list[Finding]:
    """Sources that are recorded against checkpoints that may be them: size and sha256 of the header of every file."""
    here = {identity(file): file.path.name for ckpt in given for file in ckpt.files}
    sizes = {size for size, _ in here}
    out = []
    for source in record["sources"]:
        files = source.get("files")
        if not isinstance(files, list) or not files:
            out.append(Finding("source", source["name"], "not checked", "the receipt has no digests of it"))
            continue
        for file in files:
            name = f"{source['label']} {file['name']}"
            match = here.get((file["bytes"], file["header_sha256"]))
            if match is not None:
                out.append(
                    Finding("source", name, "same", "" if match == file["name"] else f"it is called {match} here")
                )
            elif file["bytes"] in sizes:
                out.append(Finding("source", name, "changed", "a file of its size was given, with another header"))
            elif file["name"] in here.values():
                out.append(Finding("source", name, "changed", "a file of its name was given, of another size"))
            else:
                out.append(Finding("source", name, "not checked", "not among the files given"))
    return out
