"""A report that was saved: `verify --json`, `bench --json`, or the HTML page, which holds the same object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mtptools.errors import InputError
from mtptools.report.html.embedded import read_embedded

__all__ = ["HINT", "about", "load_report"]

SCHEMA: Final = 1
MOST: Final = 1 << 28
HINT: Final = "make one: mtptools verify PATH --parity --json > report.json"


def load_report(path: Path, kind: str = "verification") -> dict[str, Any]:
    """The JSON object of a `kind`, "verification" or "bench". Raises InputError for all else."""
    hint = HINT if kind == "verification" else "make one: mtptools bench PATH --json > bench.json"
    try:
        if path.stat().st_size > MOST:
            raise InputError("too large for a report", where=path, hint=hint)
        text = path.read_text(encoding="utf-8-sig")
        data = read_embedded(text) if text.lstrip().lower().startswith("<!doctype html>") else json.loads(text)
    except OSError as error:
        raise InputError(f"cannot read the report: {error.strerror or error}", where=path, hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            "not a report: it is neither JSON nor a page with a report in it", where=path, hint=hint
        ) from error
    if not isinstance(data, dict) or not isinstance(data.get("path"), str) or "ok" not in data:
        raise InputError(f"no {kind} of mtptools", where=path, hint=hint)
    if data.get("schema") != SCHEMA:
        raise InputError(
            f"a report of schema {data.get('schema')!r:.40}; this version reads schema {SCHEMA}",
            where=path,
            hint="pip install --upgrade mtptools",
        )
    if ("lineage" in data) != (kind == "verification"):
        other = "verification" if "lineage" in data else "bench"
        raise InputError(
            f"a {other}, and a {kind} is wanted", where=path, hint="--report verify.json --bench bench.json"
        )
    return data


def about(data: Mapping[str, Any], artifact: Mapping[str, Any]) -> str | None:
    """Why a report is not about an artifact; None when it is, as far as the report can tell: by size and header."""
    told = data.get("artifact")
    if isinstance(told, Mapping) and isinstance(told.get("files"), list):
        theirs, ours = (sorted(repr(_identity(file)) for file in one["files"]) for one in (told, artifact))
        return None if theirs == ours else "its files had other sizes, or other headers"
    return None if data["path"] == artifact["path"] else f"it is of {data['path']}"


def _identity(file: Any) -> tuple[Any, Any]:
    return (file.get("bytes"), file.get("header_sha256")) if isinstance(file, Mapping) else (None, None)
