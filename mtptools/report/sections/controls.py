"""L4: faults put in on purpose, beside the head as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mtptools.report.document import Bar, Bars, Beside, Block, Cell, Paragraph, Section, Table, Tone
from mtptools.report.levels import percent
from mtptools.threshold import DEAD, LEAST

__all__ = ["controls"]

TONES: Final[Mapping[str, Tone]] = {"hurts": "good", "helps": "bad", "no power": "warn"}
READ: Final = {
    "hurts": "hurts",
    "helps": "helps",
    "no power": "no power",
}


def controls(data: Mapping[str, Any]) -> Iterator[Section]:
    """Those of the decoder, else of the one pass."""
    report = data.get("decoder") or data.get("stream") or {}
    tried = [one for one in report.get("controls") or () if one["must_hurt"] or one["verdict"] == "helps"]
    if not tried:
        return
    bars = [Bar(one["name"], one["acceptance"], tone=TONES.get(one["verdict"], "")) for one in tried]
    rows: list[list[Cell | str]] = [
        [
            one["name"],
            Cell(READ.get(one["verdict"], one["verdict"]), TONES.get(one["verdict"], "")),
            percent(one["acceptance"]),
            percent(one["base"]),
            f"{one['lost']} / {one['gained']}",
        ]
        for one in tried
    ]
    header = ("fault put in", "it", "accepted", "as it is", "lost / gained")
    blocks: list[Block] = [Beside([_chart(bars, tried), Table(header, rows, left=2)])]
    rates = report.get("rates")  # of one pass
    if tried[0]["base"] < DEAD and not (rates and rates["tried"][0] < LEAST):
        blocks.insert(0, Paragraph("The head is dead: nothing can hurt it, and what helps is a diagnosis.", "bad"))
    if report.get("diagnosis"):
        blocks.insert(0, Paragraph(f"Diagnosis: {report['diagnosis']}.", "bad"))
    lead = (
        "A wrong head changes no token of the output. So each fault is put in, and must cost acceptance: "
        "one that does not could not have been seen. Lost and gained are tokens that changed sides."
    )
    yield Section("controls", "Controls", blocks, lead)


def _chart(bars: list[Bar], tried: list[Mapping[str, Any]]) -> Bars:
    base = tried[0]["base"]
    told = f"as it is {percent(base)}; " + ", ".join(f"{bar.label} {percent(bar.value)}" for bar in bars)
    return Bars("Accepted drafts, with each fault put in", bars, told, reference=base, reference_name="as it is")
