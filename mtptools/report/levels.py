"""The levels of a verification, each in a line, from its JSON object alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mtptools.report.document import Tone

__all__ = ["NAMES", "NOT_TRIED", "Level", "levels", "maybe", "percent", "verdict"]

NAMES: Final = {
    "L0": "Lineage",
    "L1": "Static checks",
    "L2": "Parity",
    "L3": "Acceptance",
    "L4": "Controls",
    "L5": "Runtime",
}


@dataclass(frozen=True, slots=True)
class Level:
    """verdict  "pass", "fail", "not checked" (tried, without an answer) or "not run"."""

    key: str
    verdict: str
    what: str

    @property
    def name(self) -> str:
        return NAMES[self.key]

    @property
    def tone(self) -> Tone:
        tones: dict[str, Tone] = {"pass": "good", "fail": "bad", "not checked": "warn"}
        return tones.get(self.verdict, "quiet")


NOT_TRIED: Final = "–"
"""In place of a number, where there was nothing to count."""


def maybe(value: float | None, form: str) -> str:
    return NOT_TRIED if value is None else format(value, form)


def percent(value: float | None) -> str:
    return maybe(value, ".1%")


def verdict(data: Mapping[str, Any]) -> tuple[str, Tone]:
    """PASS, FAIL or NOT CHECKED, with its tone."""
    if data.get("failures"):
        return "FAIL", "bad"
    return ("PASS", "good") if data.get("ok") else ("NOT CHECKED", "warn")


def levels(data: Mapping[str, Any]) -> list[Level]:
    """L0 to L5 of a verification; of a bench, which has no lineage, L2 and L3."""
    found = []
    if isinstance(data.get("lineage"), list):
        found += [_lineage(data["lineage"]), _static(data["static"])]
    decoder, stream, failed = data.get("decoder"), data.get("stream"), data.get("failures") or ()
    bad = {key for key in NAMES for line in failed if str(line).startswith(key)}
    found.append(_parity(decoder, stream, data.get("not_run")))
    found.append(_acceptance(decoder, stream, "L3" in bad))
    if isinstance(data.get("lineage"), list):
        found.append(_controls(decoder or stream, "L4" in bad))
        runtime: Mapping[str, Any] | None = data.get("runtime")
        found.append(_runtime(runtime, "L5" in bad))
    return found


def _runtime(runtime: Mapping[str, Any] | None, bad: bool) -> Level:
    if runtime is None:
        return Level("L5", "not run", "no runtime was asked")
    what = f"{runtime['name']} {runtime['version']}"
    if runtime.get("comparisons") == []:
        what += ": drafts were counted, no text was compared"
    return Level("L5", "fail" if bad else "pass", what)


def _lineage(rows: list[dict[str, Any]]) -> Level:
    told = {"fail": "differs from", "not checked": "no answer from", "pass": "bytes are those of"}  # the worst first
    against = {verdict: [str(row["against"]) for row in rows if row["verdict"] == verdict] for verdict in told}
    found = {verdict: f"{told[verdict]} {', '.join(names)}" for verdict, names in against.items() if names}
    return Level("L0", next(iter(found), "not run"), "; ".join(found.values()) or "nothing to compare with")


def _static(static: Mapping[str, Any]) -> Level:
    errors = sum(1 for one in static["findings"] if one["severity"] == "error")
    warnings = len(static["findings"]) - errors
    what = f"{len(static['passed'])} checks without a finding"
    if errors or warnings:
        what = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    return Level("L1", "fail" if errors else "pass", what)


def _parity(decoder: Mapping[str, Any] | None, stream: Mapping[str, Any] | None, not_run: str | None) -> Level:
    if decoder is None:
        if not_run:
            return Level("L2", "not checked", str(not_run).removeprefix("L2 to L4: "))
        return Level("L2", "not run", "one pass does not compare decoding modes" if stream else "nothing was decoded")
    arms = decoder["parity"]["arms"]
    if not decoder["parity"]["equal"]:
        wrong = sum(1 for arm in arms if not arm["equal"])
        return Level("L2", "fail", f"{wrong} of {len(arms)} runs differ from plain decoding")
    rows = sum(arm["compared"] for arm in arms)
    return Level("L2", "pass", f"{rows:,} logits rows equal, bit for bit")


def _acceptance(decoder: Mapping[str, Any] | None, stream: Mapping[str, Any] | None, bad: bool) -> Level:
    state = "fail" if bad else "pass"
    if decoder is not None and decoder.get("acceptance"):
        first, last = decoder["acceptance"][0], decoder["acceptance"][-1]
        what = f"{percent(first['per_position'][0])} of first drafts at k={first['k']}"
        if last is not first:
            what += f"; {last['mean_length']:.2f} tokens a step at k={last['k']}"
        return Level("L3", state, what)
    if stream is not None and stream.get("rates"):
        return Level("L3", state, f"{percent(stream['rates']['conditional'][0])} of first drafts, on the text")
    return Level("L3", "fail" if bad else "not run", "nothing was drafted" if bad else "nothing was decoded")


def _controls(report: Mapping[str, Any] | None, bad: bool) -> Level:
    controls = [one for one in (report or {}).get("controls") or () if one["must_hurt"]]
    if report is None or not controls:
        return Level("L4", "not run", "no faults were tried")
    if bad:
        return Level("L4", "fail", str(report.get("diagnosis") or "a fault helps"))
    if report["powerless"]:
        return Level("L4", "not checked", f"these texts cannot see: {', '.join(report['powerless'])}")
    return Level("L4", "pass", f"each of {len(controls)} faults put in costs acceptance")
