"""A receipt, and what was held against it, as JSON and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mtptools import __version__
from mtptools.ops.receipt_check import Finding
from mtptools.plan import human_bytes

__all__ = ["receipt_json", "receipt_text"]

SCHEMA: Final = 1
SHOWN: Final = 20


def receipt_json(
    path: str, record: Mapping[str, Any], findings: Sequence[Finding], *, beside: bool, verified: bool
) -> dict[str, Any]:
    failures = [str(one) for one in findings if one.bad]
    return {
        "schema": SCHEMA,
        "version": __version__,
        "path": path,
        "ok": not failures,
        "failures": failures,
        "form": "beside" if beside else "inside",
        "verified": verified,
        "counts": dict(Counter(f"{one.kind} {one.state}" for one in findings)),
        "findings": [one.to_json() for one in findings],
        "signature": None,
        "receipt": record,
    }


def receipt_text(data: Mapping[str, Any], *, verbose: bool) -> str:
    record = data["receipt"]
    where = "beside it" if data["form"] == "beside" else "inside it: digests of the head alone"
    lines = [f"{data['path']}: made by mtptools {record['version']} {record['verb']} (receipt {where})"]
    if record.get("command"):
        lines.append(f"command    {record['command']}")
    for source in record["sources"]:
        lines += _source(source)
    lines += _made(record)
    if data["verified"] or data["findings"]:
        lines += ["", *_found(data, verbose)]
    if signature := data.get("signature"):
        state = "written" if signature["signed"] else ""
        if signature["verified"] is not None:
            state = f"{state}, holds".lstrip(", ") if signature["verified"] else f"does not hold: {signature['wrong']}"
        lines.append(f"signature  {signature['path']}: {state}")
    return "\n".join(lines)


def _source(source: Mapping[str, Any]) -> Iterator[str]:
    origin = source.get("origin") or {}
    told = f"{source['label']:<9}  {origin.get('repo') or source['name']}"
    if origin.get("commit"):
        told += f" at {origin['commit']}"
    yield told
    for file in source.get("files") or ():
        yield f"             {file['name']}  {human_bytes(file['bytes'])}  header sha256 {file['header_sha256']}"


def _made(record: Mapping[str, Any]) -> Iterator[str]:
    rows = record.get("tensors")
    if rows is None:
        yield f"head       {len(record['head_sha256'])} tensors with sha256"
        return
    actions = Counter(str(row.get("action")) for row in rows)
    told = ", ".join(f"{count} {name}" for name, count in actions.most_common())
    yield f"plan       {len(rows)} tensors: {told}; {sum(1 for row in rows if row['bytes_pass'])} byte for byte"
    if record["linked"]:
        yield f"linked     {len(record['linked'])} files, without digests of their data"
    for fact in record.get("facts") or ():
        yield f"           {fact}"
    if isinstance(versions := record.get("versions"), Mapping):
        yield "versions   " + ", ".join(f"{name} {value}" for name, value in versions.items())
    verification = record.get("verification")
    if not isinstance(verification, Mapping):
        yield "verified   not when it was made"
        return
    yield f"verified   when it was made: {'pass' if verification.get('ok') else 'NOT A PASS'}"
    yield from (f"           {line}" for line in verification.get("failures") or ())


def _found(data: Mapping[str, Any], verbose: bool) -> Iterator[str]:
    yield from ("FAIL  something is not as the receipt says" if data["failures"] else "PASS  as the receipt says",)
    yield "  " + ", ".join(f"{count} {what}" for what, count in data["counts"].items())
    shown = [one for one in data["findings"] if verbose or one["state"] not in ("same", "linked")]
    quiet = [one for one in shown if one["kind"] == "tensor" and one["state"] == "not checked"]
    shown = shown if verbose else [one for one in shown if one not in quiet]
    for one in shown if verbose else shown[:SHOWN]:
        yield f"  {one['state']:<8} {one['kind']} {one['name']}" + (f": {one['what']}" if one["what"] else "")
    if not verbose and len(shown) > SHOWN:
        yield f"  and {len(shown) - SHOWN} more: -v"
