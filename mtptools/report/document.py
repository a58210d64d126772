"""What a report consists of, before it is HTML or Markdown: sections of a few kinds of blocks.

Text is plain text everywhere here; each renderer escapes it. Numbers are text already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Bar",
    "Bars",
    "Beside",
    "Block",
    "Cell",
    "Code",
    "Columns",
    "Excerpt",
    "Facts",
    "Items",
    "Paragraph",
    "Section",
    "Series",
    "Table",
    "Tone",
]

Tone = Literal["", "good", "bad", "warn", "quiet"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A word of a table or a list; the tone is never the only sign of what it says."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Terms and what they are."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """left  how many columns, counted from the first, hold words; the others hold numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    caption: str = ""
    left: int = 1


@dataclass(frozen=True, slots=True)
class Items:
    rows: Sequence[Cell | str]


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Two ways that a text went on: what stood before, and each one's name and tokens."""

    title: str
    before: str
    ways: Sequence[tuple[str, str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """values  one a group, None where there is none;  marks  of the baseline, drawn beside them"""

    name: str
    values: Sequence[float | None]
    marks: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class Columns:
    """Grouped columns. `share`: values are shares of 1, the axis ends at 100 %. `told` says the same in words.

    alone  no table has its numbers
    """

    title: str
    groups: Sequence[str]
    series: Sequence[Series]
    told: str
    mark: str = ""
    share: bool = True
    axis: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    mark: float | None = None
    tone: Tone = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of shares, one below the other. `reference` is a value that all are held against."""

    title: str
    rows: Sequence[Bar]
    told: str
    mark: str = ""
    reference: float | None = None
    reference_name: str = ""


@dataclass(frozen=True, slots=True)
class Beside:
    """Blocks that stand side by side where there is room."""

    blocks: Sequence[Facts | Table | Code | Columns | Bars | Excerpt]


Block = Paragraph | Facts | Table | Items | Code | Excerpt | Columns | Bars | Beside


@dataclass(frozen=True, slots=True)
class Section:
    """key  an id, unique in a document"""

    key: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""
