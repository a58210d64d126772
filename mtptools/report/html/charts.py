"""Charts as inline SVG: colours come from the page's palette, so that both are readable; words come with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mtptools.report.document import Bars, Columns
from mtptools.report.escape import html_text
from mtptools.report.levels import percent

__all__ = ["chart"]

WIDTH: Final = 400
HEIGHT: Final = 170
LEFT: Final = 36
TOP: Final = 12
ROW: Final = 24
NAMES: Final = 122
VALUES: Final = 54
LABELLED: Final = 10
"""With at most so many columns each has its value above it."""


def chart(found: Columns | Bars, key: str) -> str:
    """A figure: caption, legend, picture with its text alternative. `key` is unique in the page."""
    picture, height = _columns(found) if isinstance(found, Columns) else _bars(found)
    title, told = html_text(found.title), html_text(found.told)
    return (
        f"<figure><figcaption><h3>{title}</h3>{_legend(found)}</figcaption>"
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{title}</title><desc id="{key}-d">{told}</desc>{picture}</svg></figure>'
    )


def _legend(found: Columns | Bars) -> str:
    items = []
    if isinstance(found, Columns) and (len(found.series) > 1 or found.mark):
        for number, series in enumerate(found.series):
            box = (
                f'<rect class="fill" x="1" y="1" width="10" height="10" fill-opacity="{_shade(number, found.series)}"/>'
            )
            items.append((box, series.name))
    if isinstance(found, Bars) and found.reference is not None:
        items.append(('<line class="reference" x1="6" x2="6" y1="0" y2="12"/>', found.reference_name))
    if found.mark:
        items.append(
            ('<line class="mark" x1="0" x2="12" y1="6" y2="6"/>' if isinstance(found, Columns) else MARK, found.mark)
        )
    if not items:
        return ""
    shown = "".join(
        f'<span><svg viewBox="0 0 12 12" aria-hidden="true">{box}</svg>{html_text(name)}</span>' for box, name in items
    )
    return f'<span class="legend">{shown}</span>'


MARK: Final = '<line class="mark" x1="6" x2="6" y1="0" y2="12"/>'


def _shade(number: int, series: Sequence[object]) -> str:
    """From light to full: later series are darker."""
    return "0.85" if len(series) == 1 else f"{0.18 + 0.72 * number / (len(series) - 1):.2f}"


def _columns(found: Columns) -> tuple[str, int]:
    top = 1.0 if found.share else max((v for one in found.series for v in one.values if v is not None), default=1) or 1
    bottom, inner = TOP + HEIGHT, WIDTH - LEFT
    parts = list(_grid(found.share, top, bottom))
    group = inner / max(len(found.groups), 1)
    count = len(found.series)
    gap = 2 if count > 1 else 0
    wide = min((group * 0.78 - gap * (count - 1)) / count, 46)
    drawn = sum(value is not None for one in found.series for value in one.values)
    for at, name in enumerate(found.groups):
        middle = LEFT + group * (at + 0.5)
        parts.append(f'<text x="{middle:.1f}" y="{bottom + 15}" text-anchor="middle">{html_text(name)}</text>')
        there = [number for number, one in enumerate(found.series) if one.values[at] is not None]
        start = middle - (wide * len(there) + gap * (len(there) - 1)) / 2
        for place, number in enumerate(there):
            value = found.series[number].values[at] or 0.0
            x, tall = start + place * (wide + gap), HEIGHT * min(value / top, 1)
            parts.append(
                f'<rect class="fill" x="{x:.1f}" y="{bottom - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}" '
                f'fill-opacity="{_shade(number, found.series)}"/>'
            )
            marks = found.series[number].marks
            mark = marks[at] if at < len(marks) else None
            level = bottom - tall
            if mark is not None:
                line = bottom - HEIGHT * min(mark / top, 1)
                parts.append(
                    f'<line class="mark" x1="{x - 2:.1f}" x2="{x + wide + 2:.1f}" y1="{line:.1f}" y2="{line:.1f}"/>'
                )
                level = line - 1 if level - 16 < line < level else level
            if drawn <= LABELLED and (value or found.share):
                parts.append(
                    f'<text class="value" x="{x + wide / 2:.1f}" y="{level - 4:.1f}" text-anchor="middle">'
                    f"{f'{100 * value:.0f}' if value >= 0.005 or not value else '&lt;1'}</text>"
                )
    if found.axis:
        parts.append(
            f'<text x="{LEFT + inner / 2:.1f}" y="{bottom + 31}" text-anchor="middle">{html_text(found.axis)}</text>'
        )
    return "".join(parts), bottom + (36 if found.axis else 20)


def _grid(share: bool, top: float, bottom: int) -> Iterator[str]:
    step = 0.25 if share else next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 1.0) if top / s <= 5 or s == 1.0)
    level = 0.0
    while level <= top + 1e-9:
        y = bottom - HEIGHT * level / top
        yield f'<line class="{"base" if level == 0 else "grid"}" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * level:.0f}%</text>'
        level += step


def _bars(found: Bars) -> tuple[str, int]:
    inner = WIDTH - NAMES - VALUES
    tall = ROW * len(found.rows)
    parts = [f'<line class="base" x1="{NAMES}" x2="{NAMES}" y1="0" y2="{tall}"/>']
    if found.reference is not None:
        x = NAMES + inner * min(found.reference, 1)
        parts.append(f'<line class="reference" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{tall}"/>')
    for number, bar in enumerate(found.rows):
        y, wide = number * ROW, inner * min(max(bar.value, 0), 1)
        middle = y + ROW / 2
        short = bar.label if len(bar.label) <= 19 else bar.label[:18] + "…"
        parts.append(f'<text class="name" x="{NAMES - 8}" y="{middle + 4}" text-anchor="end">{html_text(short)}</text>')
        # The tone is told by the table beneath: here it would be colour alone.
        parts.append(
            f'<rect class="fill" x="{NAMES}" y="{y + 5}" width="{wide:.1f}" height="{ROW - 10}" fill-opacity="0.75"/>'
        )
        if bar.mark is not None:
            x = NAMES + inner * min(max(bar.mark, 0), 1)
            parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 2}" y2="{y + ROW - 2}"/>')
        parts.append(f'<text class="value" x="{WIDTH}" y="{middle + 4}" text-anchor="end">{percent(bar.value)}</text>')
    return "".join(parts), tall + 2
