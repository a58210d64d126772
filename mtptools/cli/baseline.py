"""An earlier report as what acceptance is measured against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtptools.errors import InputError

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance

__all__ = ["read_baseline"]

Measured = tuple["list[Acceptance]", "dict[str, list[Acceptance]]"]


def read_baseline(path: Path, ks: Sequence[int], tokens: int, prompts: Sequence[Sequence[int]]) -> Measured:
    """Acceptance per k of an earlier report (`verify --parity --json`) of the same prompts, and by their categories.

    Raises InputError.
    """
    from mtptools.decoder.report import digest_prompts

    hint = "make one with the same flags: mtptools verify DONOR --parity --json > report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))["decoder"]
        rows = _acceptances(report["acceptance"])
        parts = {str(name): _acceptances(part["acceptance"]) for name, part in report.get("categories", {}).items()}
        same = (report["tokens"], report["prompts_digest"]) == (tokens, digest_prompts(prompts))
    except OSError as error:
        raise InputError(f"cannot read the report: {error.strerror or error}", where=path, hint=hint) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("not a report with acceptance in it", where=path, hint=hint) from error
    if not same:
        raise InputError("the report was made with other prompts or another --tokens", where=path, hint=hint)
    missing = [k for k in ks if k not in rows or not rows[k].steps]
    if missing:
        raise InputError(f"the report says nothing of k = {', '.join(map(str, missing))}", where=path, hint=hint)
    return [rows[k] for k in ks], {name: [part[k] for k in ks if k in part] for name, part in parts.items()}


def _acceptances(rows: Sequence[Mapping[str, Any]]) -> dict[int, Acceptance]:
    """Rows of a report, by k."""
    from mtptools.decoder.acceptance import Acceptance

    return {
        int(row["k"]): Acceptance(
            int(row["k"]),
            tuple(int(n) for n in row["drafted"]),
            tuple(int(n) for n in row["accepted"]),
            int(row["steps"]),
            int(row["emitted"]),
        )
        for row in rows
    }
