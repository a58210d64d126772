"""L5: the same prompts in a real runtime; its drafts and speed, and where its text parts from another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mtptools.report.document import Bar, Bars, Beside, Block, Cell, Excerpt, Facts, Items, Section, Table, Tone
from mtptools.report.levels import percent

__all__ = ["runtime", "runtime_table"]

Data = Mapping[str, Any]
GRADES: Final[Mapping[str, Tone]] = {"defect": "bad", "unknown": "bad", "router-tie": "warn", "near-tie": "quiet"}
SHOWN: Final = 12
"""Divergences shown in context; the table counts all."""


def runtime(data: Data) -> Iterator[Section]:
    found = data.get("runtime")
    if not found:
        return
    lead = (
        f"{found['name']} {found['version']}: {len(found['prompts'])} prompts, {found['tokens']} tokens each, greedy, "
        f"k = {found['k']}; one run of each after a warm-up, one request at a time; the speed of all is the median one."
    )
    blocks: list[Block] = [runtime_table(found)]
    told = Facts(list(_facts(found)))
    blocks.append(Beside([_rates(found), told]) if found.get("ours") else told)
    if found.get("comparisons"):
        blocks.append(_comparisons(found["comparisons"]))
        excerpts = _excerpts(found["comparisons"])
        blocks += [Beside(excerpts)] if excerpts else []
    if found.get("notes"):
        blocks.append(Items([str(note) for note in found["notes"]]))
    yield Section("runtime", "In a real runtime", blocks, lead)


def _facts(found: Data) -> Iterator[tuple[str, str]]:
    """How it was run, and what it accepts of each position, of all its steps, beside our decoder."""
    yield "with MTP", str(found["how"])
    if found.get("how_plain"):
        yield "without", str(found["how_plain"])
    whole = found["aggregate"]
    speeds = whole["tokens_per_second"]
    if speeds.get("plain") and speeds.get("mtp"):
        yield "speed", f"{speeds['mtp'] / speeds['plain']:.2f} times that without"
    if whole.get("accepted_by_position") and whole.get("steps"):
        shares = (percent(count / whole["steps"]) for count in whole["accepted_by_position"])
        yield "by position", f"{', '.join(shares)} of {whole['steps']} steps"
    if found.get("ours"):
        yield "our decoder", ", ".join(map(percent, found["ours"]["per_position"])) + " of those that drafted it"


def runtime_table(found: Data) -> Table:
    """The columns of mtp-bench per prompt, speed without MTP and our decoder's rate beside, then all of them."""
    whole, plain, ours = found["aggregate"], found.get("how_plain"), found.get("ours")
    header = ["prompt", "pred", "draft", "acc", "rate", "tok/s"]
    header += ["tok/s without"] * bool(plain) + ["our rate"] * bool(ours)
    rows = []
    for one in found["prompts"]:
        name = str(one["category"] or f"prompt {one['prompt']}")
        cells = [name, str(one["tokens"]), *_counts(one), *_speeds(one, bool(plain))]
        if ours:
            known = one.get("ours")
            cells.append(f"{known['accepted'] / known['drafted']:.3f}" if known and known["drafted"] else "")
        rows.append(cells)
    total = ["all", str(sum(one["tokens"] for one in found["prompts"])), *_counts(whole), *_speeds(whole, bool(plain))]
    rows.append([*total, f"{ours['rate']:.3f}"] if ours else total)
    return Table(header, rows)


def _counts(one: Data) -> list[str]:
    if one["drafted"] is None:
        return ["not told"] * 3
    return [str(one["drafted"]), str(one["accepted"]), "n/a" if one["rate"] is None else f"{one['rate']:.3f}"]


def _speeds(one: Data, plain: bool) -> list[str]:
    speeds = one["tokens_per_second"]
    names = ("mtp", "plain") if plain else ("mtp",)
    return ["" if speeds.get(name) is None else f"{speeds[name]:.1f}" for name in names]


def _rates(found: Data) -> Bars:
    rows = [
        Bar(str(one["category"] or f"prompt {one['prompt']}"), one["rate"], _ours(one))
        for one in found["prompts"]
        if one["rate"] is not None
    ]
    told = ", ".join(f"{row.label} {percent(row.value)}" for row in rows)
    return Bars(f"Accepted by {found['name']}", rows, told, "our decoder on the same text")


def _ours(one: Data) -> float | None:
    known = one.get("ours")
    return known["accepted"] / known["drafted"] if known and known["drafted"] else None


def _comparisons(found: Sequence[Data]) -> Table:
    header = ("text", "against", "verdict", "tokens", "differences", "noise would make")
    rows: list[list[Cell | str]] = []
    for one in found:
        grades = [it["grade"] for it in one["divergences"]]
        worst = next((grade for grade in GRADES if grade in grades), None)
        verdict = Cell("the same", "good") if worst is None else Cell(f"at worst: {worst}", GRADES[worst])
        if one["systematic"]:
            verdict = Cell("more than noise makes", "bad")
        count = str(len(grades))
        flips = "not known" if one["expected_flips"] is None else f"{one['expected_flips']:.2g}"
        rows.append([str(one["found"]), str(one["expected"]), verdict, f"{one['positions']:,}", count, flips])
    return Table(header, rows, left=3)


def _excerpts(found: Sequence[Data]) -> list[Excerpt]:
    """The gravest first."""
    order = list(GRADES)
    pairs = [(one, it) for one in found for it in one["divergences"]]
    pairs.sort(key=lambda pair: order.index(pair[1]["grade"]) if pair[1]["grade"] in order else -1)
    out = []
    for one, it in pairs[:SHOWN]:
        margin = "margin not told" if it["margin"] is None else f"margin {it['margin']:.3g}"
        noise = "" if it["noise"] is None else f", noise {it['noise']:.2g}"
        title = f"{it['grade']}: prompt {it['prompt']}, token {it['at']}"
        ways = ((str(one["expected"]), str(it["expected"])), (str(one["found"]), str(it["found"])))
        out.append(Excerpt(title, str(it["before"]), ways, margin + noise))
    return out
