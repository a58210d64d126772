"""A verification as a list of cases, one for each thing that was asked. From the JSON object of `verify` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["Case", "cases"]

Status = Literal["failed", "error", "passed", "skipped"]

_LEVELS: Final = {
    "L0": "L0 lineage",
    "L1": "L1 static",
    "L2": "L2 parity",
    "L3": "L3 acceptance",
    "L4": "L4 controls",
    "L5": "L5 runtime",
}


@dataclass(frozen=True)
class Case:
    """level  a value of _LEVELS;  name  what was asked;  text  what was found, several lines where it is several

    error  what was asked could not be found out
    """

    level: str
    name: str
    status: Status
    text: str = ""


def cases(data: Mapping[str, Any]) -> list[Case]:
    """In the order of levels. No failure is lost: one that belongs to no case is a case of its own."""
    out = [*_lineage(data), *_static(data), *_decoded(data)]
    told = "\n".join(case.text for case in out if case.status == "failed")
    for line in data["failures"]:
        level, _, text = line.partition(": ")
        if text not in told and level not in (_LEVELS["L0"], _LEVELS["L1"]):
            out.append(Case(level, "result", "failed", text or line))
    return sorted(out, key=lambda case: case.level)


def _lineage(data: Mapping[str, Any]) -> Iterator[Case]:
    names: dict[str, Status] = {"pass": "passed", "fail": "failed"}
    for item in data["lineage"]:
        yield Case(_LEVELS["L0"], item["against"], names.get(item["verdict"], "skipped"), item["what"])


def _static(data: Mapping[str, Any]) -> Iterator[Case]:
    static, found = data["static"], dict[str, list[dict[str, Any]]]()
    for one in static["findings"]:
        found.setdefault(one["check"], []).append(one)
    for check, rows in found.items():
        failed = any(row["severity"] == "error" for row in rows)
        text = "\n".join(f"{row['severity']}: {row['what']}\n{row['evidence']}\nfix: {row['fix']}" for row in rows)
        yield Case(_LEVELS["L1"], check, "failed" if failed else "passed", text)
    for status in ("passed", "skipped"):
        yield from (Case(_LEVELS["L1"], check, status) for check in static[status] if check not in found)


def _decoded(data: Mapping[str, Any]) -> Iterator[Case]:
    decoder, stream, runtime = data.get("decoder"), data.get("stream"), data.get("runtime")
    if decoder:
        rows = sum(arm["compared"] for arm in decoder["parity"]["arms"])
        told = f"{len(decoder['parity']['arms'])} arms, {rows} rows of logits compared bit for bit"
        yield _judged(data, "L2", "plain and speculative decoding", told, every=True)
        for number, row in enumerate(decoder["acceptance"]):
            told = f"{row['rate']:.1%} of drafts, mean length {row['mean_length']:.2f}"
            marks = (f"k={row['k']}:", f"(k={row['k']})")
            yield _judged(data, "L3", f"k={row['k']}", told, marks=marks, every=number == 0)
        yield from _controls(data, decoder)
    elif stream:
        yield Case(
            _LEVELS["L2"], "plain and speculative decoding", "skipped", "--stream reads a text, nothing is decoded"
        )
        rates = stream["rates"] or {"tried": [], "conditional": []}
        for number, (tried, rate) in enumerate(zip(rates["tried"], rates["conditional"], strict=True), 1):
            told = f"{rate:.1%} of {tried}, all before it being right" if tried else "tried nowhere"
            yield _judged(data, "L3", f"draft {number}", told, marks=(f"draft {number}:",), every=number == 1)
        yield from _controls(data, stream)
    else:
        # What was asked for and not found out is an error, unless a failure before it is the reason.
        asked = data.get("not_run")
        status: Status = "error" if asked and not data["failures"] else "skipped"
        text = f"not checked: {asked}" if asked else "nothing was decoded"
        yield from (Case(_LEVELS[level], "not run", status, text) for level in ("L2", "L3", "L4"))
    if runtime:
        name = runtime.get("name") or "runtime"
        yield _judged(data, "L5", str(name), str(runtime.get("version") or ""), every=True)


def _controls(data: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[Case]:
    lines = [line for line in data["failures"] if line.startswith(_LEVELS["L4"])]
    for one in report["controls"]:
        helped = [line for line in lines if one["cure"] in line]
        if helped or one["must_hurt"]:
            told = f"{one['verdict']}: {one['acceptance']:.1%}, as it is {one['base']:.1%}"
            status: Status = "failed" if helped else "skipped" if one["verdict"] == "no power" else "passed"
            yield Case(_LEVELS["L4"], one["name"], status, "\n".join([*(_text(line) for line in helped), told]))


def _judged(
    data: Mapping[str, Any], level: str, name: str, told: str, *, marks: tuple[str, ...] = (), every: bool
) -> Case:
    """A case that fails on the level's failures: those with one of its marks, and with `every` those with nobody's."""
    title = _LEVELS[level]
    own = [line for line in data["failures"] if line.startswith(title)]
    mine = [line for line in own if any(mark in line for mark in marks)]
    if every:
        mine += [line for line in own if line not in mine and not _is_marked(line)]
    if mine and level == "L3":
        mine += [line for line in data["failures"] if line.startswith("diagnosis")]
    text = "\n".join([*map(_text, mine), told])
    return Case(title, name, "failed" if mine else "passed", text)


def _is_marked(line: str) -> bool:
    """Does it name a k or a draft?"""
    return "k=" in line or line.startswith(f"{_LEVELS['L3']}: draft ")


def _text(line: str) -> str:
    return line.partition(": ")[2]
