"""An artifact in the facts that a report and a model card state: sizes, the head's types, what it was made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mtptools.checkpoint import Checkpoint, File
from mtptools.errors import CorruptError, InputError
from mtptools.head import head_names, is_sidecar
from mtptools.ops.draft_loaders import draft_facts
from mtptools.ops.inspect import inspect
from mtptools.ops.receipt_check import check_parts
from mtptools.receipt import identity, load_beside, load_inside

__all__ = ["artifact"]


def artifact(ckpt: Checkpoint) -> dict[str, Any]:
    """What is in a checkpoint and what its receipts say of its making, without paths. Headers are read, no weights.

    head      bytes, tensors, and per type how many tensors and bytes; None without a head
    receipt   verb, version, sources, counts per action; of the receipt beside it, else of the one inside; None without
    declared  a GGUF's block_count and nextn_predict_layers, or the depth that config.json states
    """
    seen = inspect(ckpt)
    kept = ("path", "container", "dialect", "family", "family_error", "tensors", "types", "tokenizer")
    out = {key: seen[key] for key in kept}
    out["files"] = [_file(file) for file in ckpt.files]
    out["origin"] = None if ckpt.origin is None else ckpt.origin.to_json()
    out["sidecar"] = is_sidecar(ckpt)
    out["bytes"] = seen["bytes"]["file"]
    out["title"] = seen.get("title")
    out["trunk_layers"] = seen.get("trunk_layers")
    out["declared"] = _declared(ckpt, seen)
    out["draft_vocabulary"] = seen.get("draft_vocabulary")
    out["loaders"] = draft_facts(ckpt, alone=out["sidecar"]) if out["draft_vocabulary"] else []
    out["head"] = _head(ckpt)
    try:
        full = load_beside(ckpt)
        record = full or load_inside(ckpt)
        check_parts(record or {"sources": []}, ckpt.path)
        out["receipt"] = _receipt(record, beside=full is not None)
    except CorruptError as error:
        out["receipt"], out["receipt_error"] = None, error.what
    return out


def _file(file: File) -> dict[str, Any]:
    size, digest = identity(file)
    return {"name": file.path.name, "bytes": size, "tensors": len(file.names), "header_sha256": digest}


def _declared(ckpt: Checkpoint, seen: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"depth": (seen.get("declared") or {}).get("depth")}
    if ckpt.dialect == "gguf":
        arch = str(ckpt.metadata.get("general.architecture"))
        for key in ("block_count", "nextn_predict_layers"):
            value = ckpt.metadata.get(f"{arch}.{key}")
            out[key] = value if isinstance(value, int) else None
    return out


def _head(ckpt: Checkpoint) -> dict[str, Any] | None:
    try:
        names = head_names(ckpt)
    except InputError:
        return None
    if not names:
        return None
    tensors, sizes = Counter[str](), Counter[str]()
    for name in names:
        tensors[ckpt[name].codec] += 1
        sizes[ckpt[name].codec] += ckpt[name].nbytes
    types = [{"type": kind, "tensors": tensors[kind], "bytes": nbytes} for kind, nbytes in sizes.most_common()]
    return {"tensors": len(names), "bytes": sum(sizes.values()), "types": types}


def _receipt(record: Mapping[str, Any] | None, *, beside: bool) -> dict[str, Any] | None:
    if record is None:
        return None
    out: dict[str, Any] = {"beside": beside, "verb": record["verb"], "version": record["version"]}
    out |= {key: record[key] for key in ("command", "versions") if key in record}
    out["sources"] = [_source(source) for source in record["sources"]]
    if beside:
        rows = record["tensors"]
        out["facts"] = [str(fact) for fact in record.get("facts") or ()]
        out["actions"] = dict(Counter(str(row.get("action")) for row in rows).most_common())
        out["bytes_pass"] = sum(1 for row in rows if row["bytes_pass"])
        out["tensors"] = len(rows)
        out["linked"] = len(record["linked"])
    return out


def _source(source: Mapping[str, Any]) -> dict[str, Any]:
    """Label, name, dialect, bytes, header digests of the files, and where it came from, as far as it is known."""
    out = {key: source[key] for key in ("label", "name", "dialect", "origin") if source.get(key) is not None}
    files = source.get("files")
    if isinstance(files, list):
        out["files"] = [
            {key: file.get(key) for key in ("name", "bytes", "header_sha256")}
            for file in files
            if isinstance(file, dict)
        ]
        out["bytes"] = sum(file["bytes"] for file in out["files"] if isinstance(file["bytes"], int))
    return out
