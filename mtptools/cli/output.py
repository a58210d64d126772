"""Where results go: data to stdout, everything else to stderr, progress only on a terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

__all__ = ["emit", "note", "progress", "status", "table"]


def emit(data: Any, text: str, *, as_json: bool, quiet: bool) -> None:
    """Print a result: the JSON object, the text, or nothing."""
    if as_json:
        click.echo(json.dumps(data, indent=1, ensure_ascii=False, default=str))
    elif not quiet and text:
        click.echo(text)


def note(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        click.echo(text, err=True)


@contextlib.contextmanager
def progress(total: int, label: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A callback for bytes done; a bar on stderr when that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda n: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=label, unit="B", unit_scale=True, file=sys.stderr, leave=False) as bar:

        def done(n: int) -> None:
            bar.update(n)

        yield done


@contextlib.contextmanager
def status(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A callback for what is being done now; one line on stderr that rewrites itself, on a terminal only."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return

    def show(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        show("")


def table(rows: Sequence[Sequence[object]], *, header: Sequence[str] = (), indent: str = "") -> str:
    """Rows as aligned columns."""
    cells = [[str(cell) for cell in row] for row in ([header] if header else []) + list(rows)]
    if not cells:
        return ""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in cells
    ]
    if header:
        lines.insert(1, indent + "  ".join("-" * width for width in widths))
    return "\n".join(lines)
