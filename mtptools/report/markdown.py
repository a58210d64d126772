"""A report as GitHub Markdown: the facts of the HTML page, in tables; pictures are left out, their numbers are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from mtptools.report.escape import markdown_code, markdown_text, plain
from mtptools.report.levels import levels, percent, verdict
from mtptools.report.sections import sections

__all__ = ["blocks_markdown", "markdown_report", "section_markdown", "table_markdown"]


def markdown_report(data: Mapping[str, Any]) -> str:
    """From the JSON object of a verification (`Verification.to_json()`) or a bench; what is missing has no section."""
    word, _ = verdict(data)
    kind = "verify" if isinstance(data.get("lineage"), list) else "bench"
    lines = [f"<!-- mtptools {kind} report -->", f"## {word}: {markdown_code(data.get('path') or 'a checkpoint')}", ""]
    lines += [f"- **{markdown_text(line)}**" for line in data.get("failures") or ()]
    if data.get("not_run"):
        lines.append(f"- **Not run: {markdown_text(data['not_run'])}**")
    rows = [[level.key, level.name, level.verdict, level.what] for level in levels(data)]
    lines += ["", *table_markdown(Table(("level", "", "verdict", ""), rows, left=4))]
    for section in sections(data):
        lines += ["", *section_markdown(section)]
    return "\n".join(lines) + "\n"


def section_markdown(section: Section, depth: int = 3) -> list[str]:
    lines = [f"{'#' * depth} {markdown_text(section.title)}"]
    if section.lead:
        lines += ["", markdown_text(section.lead)]
    return [*lines, *blocks_markdown(section.blocks)]


def blocks_markdown(blocks: Sequence[Block]) -> list[str]:
    """Each block after an empty line."""
    return [line for block in blocks if (told := list(_block(block))) for line in ("", *told)]


def table_markdown(table: Table) -> list[str]:
    """A pipe table; words to the left, numbers to the right. The caption is a bold line above it."""
    caption = [f"**{markdown_text(table.caption)}**", ""] if table.caption else []
    rule = [":--" if at < table.left else "--:" for at in range(len(table.header))]
    rows = [[_cell(cell) for cell in row] for row in table.rows]
    return [*caption, _row([markdown_text(name) for name in table.header]), _row(rule), *map(_row, rows)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell | str) -> str:
    return markdown_text(cell.text if isinstance(cell, Cell) else cell)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield markdown_text(block.text)
    elif isinstance(block, Facts):
        yield from (f"- {markdown_text(term)}: {markdown_text(told)}" for term, told in block.rows)
    elif isinstance(block, Table):
        yield from table_markdown(block)
    elif isinstance(block, Items):
        yield from (f"- {_cell(row)}" for row in block.rows)
    elif isinstance(block, Code):
        yield from _fenced(block)
    elif isinstance(block, Excerpt):
        yield from _excerpt(block)
    elif isinstance(block, Beside):
        yield from blocks_markdown(block.blocks)[1:]
    elif isinstance(block, Columns) and block.alone:
        yield from table_markdown(_numbers(block))
    else:
        assert isinstance(block, Columns | Bars)


def _fenced(block: Code) -> Iterator[str]:
    fence = "```"
    while fence in block.text:
        fence += "`"
    yield fence + block.language
    yield from (plain(line, 100_000) for line in block.text.split("\n"))
    yield fence


def _excerpt(block: Excerpt) -> Iterator[str]:
    yield f"**{markdown_text(block.title)}**"
    yield ""
    yield f"- before: {markdown_code(block.before)}"
    yield from (f"- {markdown_text(name)}: {markdown_code(text)}" for name, text in block.ways)
    if block.note:
        yield f"- {markdown_text(block.note)}"


def _numbers(block: Columns) -> Table:
    """A picture that no table stands beside, as one."""
    header = [block.title, *(one.name for one in block.series)]
    rows = [
        [name, *("" if one.values[at] is None else percent(one.values[at] or 0) for one in block.series)]
        for at, name in enumerate(block.groups)
    ]
    return Table(header, rows)
