"""Blocks of a document as HTML. All text goes through `html_text`."""

from __future__ import annotations

import re
from typing import Final

from mtptools.report.document import (
    Bars,
    Beside,
    Block,
    Cell,
    Code,
    Columns,
    Excerpt,
    Facts,
    Items,
    Paragraph,
    Section,
    Table,
)
from mtptools.report.escape import html_text, visible
from mtptools.report.html.charts import chart

__all__ = ["section"]

_DIGEST: Final = re.compile(r"[0-9a-f]{40,}")
LONG: Final = 34
"""Cells of words this long may break over lines."""


def section(found: Section) -> str:
    key = html_text(found.key)
    parts = [f'<section id="{key}" aria-labelledby="{key}-h"><h2 id="{key}-h">{html_text(found.title)}</h2>']
    if found.lead:
        parts.append(f'<p class="lead">{html_text(found.lead)}</p>')
    parts += [_block(block, f"{key}-b{number}") for number, block in enumerate(found.blocks)]
    return "".join(parts) + "</section>"


def _block(block: Block, key: str) -> str:
    if isinstance(block, Paragraph):
        return f"<p{_class(block.tone)}>{html_text(block.text)}</p>"
    if isinstance(block, Facts):
        rows = "".join(f"<dt>{html_text(term)}</dt><dd>{html_text(told)}</dd>" for term, told in block.rows)
        return f"<dl>{rows}</dl>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Items):
        return '<ul class="items">' + "".join(f"<li>{_cell(row)}</li>" for row in block.rows) + "</ul>"
    if isinstance(block, Code):
        return f'<pre tabindex="0"><code>{html_text(block.text)}</code></pre>'
    if isinstance(block, Excerpt):
        return _excerpt(block)
    if isinstance(block, Beside):
        return (
            '<div class="beside">' + "".join(_block(one, f"{key}-{n}") for n, one in enumerate(block.blocks)) + "</div>"
        )
    assert isinstance(block, Columns | Bars)
    return chart(block, key)


def _class(tone: str) -> str:
    return f' class="{tone}"' if tone else ""


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, Cell):
        return f"<span{_class(cell.tone)}>{html_text(cell.text)}</span>" if cell.text else ""
    return html_text(cell)


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class("word" if at < table.left else "")}>{html_text(name)}</th>'
        for at, name in enumerate(table.header)
    )
    rows = []
    for row in table.rows:
        cells = []
        for at, cell in enumerate(row):
            text = cell.text if isinstance(cell, Cell) else cell
            kinds = ["word"] * (at < table.left)
            kinds += ["digest"] if _DIGEST.fullmatch(text) else ["long"] * (at < table.left and len(text) > LONG)
            cells.append(f"<td{_class(' '.join(kinds))}>{_cell(cell)}</td>")
        rows.append("<tr>" + "".join(cells) + "</tr>")
    caption = f"<caption>{html_text(table.caption)}</caption>" if table.caption else ""
    label = html_text(table.caption or ", ".join(table.header))
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{label}"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _excerpt(found: Excerpt) -> str:
    """Tokens as text; `bdi` keeps a text that runs right to left from turning what stands around it."""
    rows = [("before", "before", found.before), *(("", name, text) for name, text in found.ways)]
    told = "".join(
        f"<dt>{html_text(name)}</dt><dd{_class(kind)}><bdi>{html_text(visible(text))}</bdi></dd>"
        for kind, name, text in rows
    )
    note = f"<p>{html_text(found.note)}</p>" if found.note else ""
    return f'<div class="excerpt"><h3>{html_text(found.title)}</h3><dl>{told}</dl>{note}</div>'
