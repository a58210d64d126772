"""The probe: acceptance of every wiring that runtimes disagree on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mtptools.report.document import Cell, Section, Table
from mtptools.report.levels import percent

__all__ = ["probe"]


def probe(data: Mapping[str, Any]) -> Iterator[Section]:
    found = (data.get("decoder") or {}).get("probe") or ()
    if not found:
        return
    rows: list[list[Cell | str]] = []
    for one in found:
        wiring, acceptance = one["wiring"], one["acceptance"]
        first = "zeroed" if wiring["mask_first"] else "kept"
        cells = [wiring["tap"], wiring["recycle"], first, wiring["recurrence"]]
        used = Cell("in use", "good") if one["stated"] else Cell("", "quiet")
        rows.append([*map(str, cells), used, percent(acceptance["rate"]), f"{acceptance['mean_length']:.2f}"])
    header = ("tap", "recycle", "position 0", "recurrence", "", "rate", "tokens a step")
    lead = f"Every wiring that runtimes disagree on, best first, k = {found[0]['acceptance']['k']}."
    yield Section("probe", "Wiring", [Table(header, rows, left=5)], lead)
