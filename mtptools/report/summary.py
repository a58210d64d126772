"""The step summary of a CI job: Markdown with a verdict, the faults and the acceptance of each artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mtptools import __version__
from mtptools.report.escape import markdown_text
from mtptools.report.gate import Checked, Gate
from mtptools.report.levels import NAMES

__all__ = ["summary"]

_MARKS: Final = {"PASS": "✅", "FAIL": "❌", "ERROR": "❌", "NOT CHECKED": "⚠️"}
_WORDS: Final = {"fail": "**fail**", "not run": "–"}


def summary(gate: Gate) -> str:
    """GitHub Markdown. Names of files and tensors are escaped: they are not ours."""
    verdict, _, line = gate.line.partition("  ")
    head = ["verdict", "artifact", *NAMES, "seconds"]
    out = [f"## {_MARKS[verdict]} {verdict}: {markdown_text(line)}", "", _row(head), "|" + "---|" * len(head)]
    for one in gate.checked:
        found = {level.key: _WORDS.get(level.verdict, level.verdict) for level in one.levels}
        cells = [
            f"{_MARKS[one.verdict]} {one.verdict}",
            markdown_text(one.name),
            *(found.get(level, "–") for level in NAMES),
        ]
        out.append(_row([*cells, f"{one.seconds:.1f}"]))
    for one in gate.checked:
        out += _details(one)
    return "\n".join([*out, "", f"<sub>mtptools {__version__}</sub>", ""])


def _details(one: Checked) -> list[str]:
    out = ["", f"### {markdown_text(one.name)}", ""]
    out += [f"- **{markdown_text(fault.title)}** ({fault.level}): {markdown_text(fault.text)}" for fault in one.faults]
    out += [f"  <br>fix: {markdown_text(one.faults[0].fix)}"] if one.faults and one.faults[0].fix else []
    if not one.faults:
        out.append(markdown_text(one.line))
    table = _acceptance(one.verification or {})
    return out + (["", *table] if table else [])


def _acceptance(data: Mapping[str, Any]) -> list[str]:
    """One row per k, the baseline's rate beside ours."""
    decoder = data.get("decoder")
    if not decoder:
        return []
    baseline = data.get("baseline") or {}
    base = {row["k"]: row["rate"] for row in baseline.get("acceptance", ())}
    deepest = max(decoder["k"])
    head = ["k", *(f"pos {n + 1}" for n in range(deepest)), "rate", "mean length", *(["baseline rate"] if base else [])]
    out = [_row(head), "|" + "---:|" * len(head)]
    for row in decoder["acceptance"]:
        cells = [f"{share:.1%}" for share in row["per_position"]]
        cells += [""] * (deepest - len(cells)) + [f"{row['rate']:.1%}", f"{row['mean_length']:.2f}"]
        cells += [f"{base[row['k']]:.1%}" if row["k"] in base else ""] if base else []
        out.append(_row([str(row["k"]), *cells]))
    return out


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
