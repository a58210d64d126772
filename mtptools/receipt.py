"""What was made from what: enough to check an output later, without a clock and without a path in it.

The receipt stands beside the output (`OUT.receipt.json`, or `mtptools-receipt.json` in a folder); a short form
of it, with the head's digests, is inside the output's own metadata.

Every tensor has a digest of its bytes, but for those in files that are hard links to the input's: these are not read.
They carry `linked: true` instead, and `linked` at the top names their files with size and digest of the header, which
hold the names, types and places of what is in them. A receipt cannot tell whether the data of such a file changed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from reprlib import repr as short  # a damaged value may be a megabyte long
from typing import Any, Final

from mtptools import __version__
from mtptools.checkpoint import Checkpoint, File
from mtptools.containers.safetensors import load_json, parse_json
from mtptools.errors import CorruptError
from mtptools.plan import Plan
from mtptools.tokens import tokenizer_facts

__all__ = [
    "KEY_PREFIX",
    "RECEIPT_KEY",
    "SCHEMA",
    "build",
    "identity",
    "inside",
    "load_beside",
    "load_inside",
    "receipt_path",
]

SCHEMA: Final = 1
KEY_PREFIX: Final = "mtptools."
RECEIPT_KEY: Final = "mtptools.receipt"
FOLDER_NAME: Final = "mtptools-receipt.json"
MAKERS: Final = ("numpy", "numba", "xllamacpp", "safetensors", "huggingface_hub")
"""Packages whose code, or whose transfer, is behind the bytes of an output."""


def receipt_path(out: Path, folder: bool) -> Path:
    return out / FOLDER_NAME if folder else out.with_name(out.name + ".receipt.json")


def identity(file: File) -> tuple[int, str]:
    """Size of a weight file, and sha256 of what stands before its data."""
    with open(file.path, "rb") as handle:
        return file.size, hashlib.sha256(handle.read(file.header)).hexdigest()


def _sources(plan: Plan) -> list[dict[str, Any]]:
    out = []
    for item in plan.inputs:
        ckpt = item.checkpoint
        source: dict[str, Any] = {"label": item.label, "name": ckpt.path.name, "dialect": ckpt.dialect}
        source |= {} if ckpt.origin is None else {"origin": ckpt.origin.to_json()}
        out.append(source | {"files": [_file(file, file.path.name) for file in ckpt.files]})
    return out


def _versions() -> dict[str, str]:
    """Of Python, and of the packages that made bytes, as far as they are installed.

    They stand in the receipt beside the output and not in the one inside: the same plan gives the same file.
    """
    found = {"python": platform.python_version(), "mtptools": __version__}
    for name in MAKERS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _file(file: File, name: str) -> dict[str, Any]:
    size, digest = identity(file)
    return {"name": name, "bytes": size, "header_sha256": digest}


def _linked(plan: Plan) -> list[dict[str, Any]]:
    files = {file.path: file for item in plan.inputs for file in item.checkpoint.files}
    return [_file(files[file.linked], file.name) for file in plan.files if file.linked is not None]


def build(
    plan: Plan, digests: Mapping[str, str], head_sha256: Mapping[str, str], command: str | None = None
) -> dict[str, Any]:
    """The full receipt. `digests` is xxh3-128 per written tensor, `head_sha256` sha256 per tensor of the head.

    command  as it can be typed again; None where there was none
    """
    linked = {entry.name for file in plan.files if file.linked is not None for entry in file.entries}
    return {
        "schema": SCHEMA,
        "tool": "mtptools",
        "version": __version__,
        "verb": plan.verb,
        **({} if command is None else {"command": command}),
        "versions": _versions(),
        "sources": _sources(plan),
        "changes": plan.to_json()["changes"],
        "facts": list(plan.facts),
        "used": [asdict(used) for used in plan.used],
        "linked": _linked(plan),
        "files": [*(file.name for file in plan.files), *(side.name for side in plan.side)],
        "tensors": [
            {
                "name": entry.name,
                "action": entry.action,
                "input": entry.input,
                "from": list(entry.names) if len(entry.names) <= 4 else [entry.names[0], "...", entry.names[-1]],
                "type": entry.codec,
                "bytes_pass": entry.passes,
            }
            | ({"encoding": entry.encoding} if entry.encoding else {})
            | ({"weighted": True} if entry.importance is not None else {})
            | ({"linked": True} if entry.name in linked else {"xxh3_128": digests[entry.name]})
            | ({"sha256": head_sha256[entry.name]} if entry.name in head_sha256 else {})
            for entry in plan.entries
        ],
        "verification": None,
    }


def inside(plan: Plan, head_sha256: Mapping[str, str]) -> str:
    """The short form for an output's own metadata. Its length depends on the plan alone, not on the digests."""
    names = [entry.name for entry in plan.entries if entry.head]
    tokens = tokenizer_facts(plan.inputs[0].checkpoint)
    record = {
        "schema": SCHEMA,
        "version": __version__,
        "verb": plan.verb,
        "sources": [{"label": i.label, "name": i.checkpoint.path.name} for i in plan.inputs],
        "tokenizer_sha256": None if tokens is None else tokens.digest,
        "head_sha256": {name: head_sha256.get(name, "0" * 64) for name in names},
    }
    return json.dumps(record, separators=(",", ":"))


def load_inside(ckpt: Checkpoint) -> dict[str, Any] | None:
    """The short receipt in a checkpoint's own metadata, if there is one. Raises CorruptError when it cannot be one."""
    texts = [str(ckpt.metadata[RECEIPT_KEY])] if RECEIPT_KEY in ckpt.metadata else []
    texts += [str(f.metadata[RECEIPT_KEY]) for f in ckpt.files if RECEIPT_KEY in f.metadata]
    if not texts:
        return None
    where = f"{ckpt.path}: {RECEIPT_KEY}"
    record = _checked(parse_json(texts[0].encode("utf-8", "surrogateescape"), where), where)
    digests = record.get("head_sha256")
    tokens = record.get("tokenizer_sha256")
    if not (isinstance(digests, dict) and all(isinstance(value, str) for value in digests.values())):
        raise _not_ours("head_sha256", where)
    if not (tokens is None or isinstance(tokens, str)):
        raise _not_ours("tokenizer_sha256", where)
    return record


def load_beside(ckpt: Checkpoint) -> dict[str, Any] | None:
    """The full receipt beside a checkpoint, if there is one. Raises CorruptError when it cannot be one."""
    path = receipt_path(ckpt.path, ckpt.path.is_dir())
    if not path.is_file():
        return None
    record = _checked(load_json(path), path)
    rows = record.get("tensors")
    if not _rows(rows, name=str, bytes_pass=bool):
        raise _not_ours("tensors", path)
    if not _rows([row for row in rows or () if row.get("linked") is not True], xxh3_128=str):
        raise _not_ours("xxh3_128", path)
    if not _rows(record.setdefault("linked", []), name=str, bytes=int, header_sha256=str):
        raise _not_ours("linked", path)
    return record


def _checked(record: Any, where: object) -> dict[str, Any]:
    """What both forms of a receipt have; the rest of each is checked where it is loaded."""
    if not isinstance(record, dict) or "schema" not in record:
        raise _not_ours("schema", where)
    if record["schema"] != SCHEMA:
        raise CorruptError(
            f"a receipt of schema {short(record['schema'])}; this version reads schema {SCHEMA}",
            where=where,
            hint="pip install --upgrade mtptools",
        )
    for key in ("version", "verb"):
        if not isinstance(record.get(key), str):
            raise _not_ours(key, where)
    if not _rows(record.get("sources"), label=str, name=str):
        raise _not_ours("sources", where)
    return record


def _rows(value: Any, **fields: type) -> bool:
    """Is `value` a list of objects with these fields?"""
    return isinstance(value, list) and all(
        isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in fields.items()) for row in value
    )


def _not_ours(key: str, where: object) -> CorruptError:
    return CorruptError(
        f"not a receipt of mtptools: {key} is missing or not what it should be",
        where=where,
        hint="make the output again: graft, extract and strip write a new receipt",
    )
