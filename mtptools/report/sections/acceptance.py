"""Sections about acceptance: by position and k, by domain, prompt by prompt, and sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mtptools.report.document import Bar, Bars, Beside, Cell, Code, Columns, Section, Series, Table
from mtptools.report.levels import percent
from mtptools.report.mtp_bench import OWN_SPEED, aggregate, prompt_rows, whole

__all__ = ["acceptance", "by_domain_table", "by_k_table", "prompts", "sampled"]

Data = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def acceptance(data: Data) -> Iterator[Section]:
    """L3 of the decoder, or of a bench."""
    decoder = data.get("decoder")
    if not decoder or not decoder.get("acceptance"):
        return
    rows, base = decoder["acceptance"], data.get("baseline") or {}
    charts: list[Columns | Bars] = [_by_position(rows, base)]
    tables = [by_k_table(decoder, base)]
    if decoder.get("categories"):
        charts.append(_by_domain(decoder, base))
        tables.append(by_domain_table(decoder, base))
    yield Section("acceptance", "Acceptance", [Beside(charts), *tables], _lead(decoder, base))
    yield from prompts(decoder)


def prompts(decoder: Data) -> Iterator[Section]:
    """Every prompt in the columns of mtp-bench, then all; nothing where counts per prompt are not known."""
    listed = prompt_rows(decoder)
    if listed is None:
        return
    k, rows = listed
    header = ("prompt", "pred", "draft", "acc", "rate", "tok/s")
    shown = [[row.name, *row.cells()] for row in (*rows, whole(rows))]
    yield Section(
        "prompts",
        "Prompt by prompt",
        [Beside([Table(header, shown), Code(f"Aggregate: {aggregate(rows)}")])],
        f"k = {k}, the columns of mtp-bench. {OWN_SPEED}",
    )


def _lead(decoder: Data, base: Data) -> str:
    told = f"{decoder['prompts']} prompts, {decoder['tokens']} tokens each, greedy"
    if "distinct" in decoder:
        told += f"; {decoder['distinct']:.0%} of the emitted tokens are distinct"
    if base.get("name"):
        told += f". Baseline: {base['name']}"
    return told + "."


def _marks(base: Data, k: int) -> Mapping[str, Any] | None:
    return next((row for row in base.get("acceptance") or () if row["k"] == k), None)


def _by_position(rows: Rows, base: Data) -> Columns:
    deepest = max(row["k"] for row in rows)
    series = []
    for row in rows:
        known = _marks(base, row["k"])
        fill: list[float | None] = [None] * (deepest - row["k"])
        marks = [] if known is None else [*known["per_position"], *fill]
        series.append(Series(f"k = {row['k']}", [*row["per_position"], *fill], marks))
    told = "; ".join(f"k={row['k']}: " + ", ".join(map(percent, row["per_position"])) for row in rows)
    groups = [str(n + 1) for n in range(deepest)]
    mark = "baseline" if any(one.marks for one in series) else ""
    return Columns("Accepted, by position of the draft", groups, series, told, mark, axis="position of the draft")


def _widest(rows: Rows) -> int:
    """The k that domains are shown at: the largest that is not beyond what people run."""
    ks = [int(row["k"]) for row in rows]
    return max([k for k in ks if k <= 3] or ks[:1])


def _at(found: Data | None, k: int) -> Mapping[str, Any] | None:
    return next((row for row in (found or {}).get("acceptance") or () if row["k"] == k), None)


def _by_domain(decoder: Data, base: Data) -> Bars:
    k = _widest(decoder["acceptance"])
    bars = []
    for name, found in decoder["categories"].items():
        row, known = _at(found, k), _at((base.get("categories") or {}).get(name), k)
        if row is not None:
            bars.append(Bar(name or "(none)", row["rate"], None if known is None else known["rate"]))
    whole = _at(decoder, k)
    told = ", ".join(f"{bar.label} {percent(bar.value)}" for bar in bars)
    mark = "baseline" if any(bar.mark is not None for bar in bars) else ""
    rate = None if whole is None else whole["rate"]
    return Bars(f"Accepted, by domain, k = {k}", bars, told, mark, rate, "all prompts")


def by_k_table(decoder: Data, base: Data) -> Table:
    """One row per k, one column per draft position."""
    rows, arms = decoder["acceptance"], decoder["parity"]["arms"]
    deepest, known = max(row["k"] for row in rows), base.get("acceptance") or ()
    speed = any("speedup" in row for row in rows)
    header = ["k", "parity", *(f"pos {n + 1}" for n in range(deepest)), "rate", "tokens a step"]
    header += ["baseline rate"] * bool(known) + ["tok/s", "speedup"] * speed
    out = []
    for row in rows:
        words = [arm for arm in arms if f"k={row['k']}" in str(arm["arm"]).replace(",", " ").split()]
        equal = all(arm["equal"] for arm in words)
        same = Cell("exact", "good") if words and equal else Cell("DIFFERS", "bad") if words else Cell("", "quiet")
        shares = [percent(share) for share in row["per_position"]]
        cells: list[Cell | str] = [str(row["k"]), same, *shares, *[""] * (deepest - len(shares))]
        cells += [percent(row["rate"]), f"{row['mean_length']:.2f}"]
        if known:
            match = _marks(base, row["k"])
            cells.append("" if match is None else percent(match["rate"]))
        if speed:
            cells += [f"{row['tokens_per_second']:.1f}", f"{row['speedup']:.2f}"]
        out.append(cells)
    return Table(header, out, "By k", 2)


def by_domain_table(decoder: Data, base: Data) -> Table:
    """One row per category, one column per k, and the baseline's beside it where it is known."""
    ks = [row["k"] for row in decoder["acceptance"]]
    known = base.get("categories") or {}
    header = ["domain"]
    for k in ks:
        header += [f"rate, k={k}"] + ["baseline"] * bool(known)
    header.append(f"tokens a step, k={ks[-1]}")
    out = []
    for name, found in decoder["categories"].items():
        cells = [name or "(none)"]
        for k in ks:
            row, other = _at(found, k), _at(known.get(name), k)
            cells.append("" if row is None else percent(row["rate"]))
            if known:
                cells.append("" if other is None else percent(other["rate"]))
        last = _at(found, ks[-1])
        out.append([*cells, "" if last is None else f"{last['mean_length']:.2f}"])
    return Table(header, out, "By domain")


def sampled(data: Data) -> Iterator[Section]:
    """The sampled arms of L3."""
    for number, arm in enumerate((data.get("decoder") or {}).get("sampled") or (), 1):
        per_k = next(iter(arm["drafts"].values()))
        header = ["drafts chosen by", *(f"rate, k={row['k']}" for row in per_k), f"tokens a step, k={per_k[-1]['k']}"]
        rows = [
            [choice, *(percent(row["rate"]) for row in found), f"{found[-1]['mean_length']:.2f}"]
            for choice, found in arm["drafts"].items()
        ]
        told = arm.get("words") or f"temperature {arm['sampling']['temperature']:g}"
        lead = f"{arm['prompts']} prompts; {told}. The text is that of plain sampling with the same seed."
        yield Section(f"sampled-{number}", "Acceptance when sampling", [Table(header, rows)], lead)
