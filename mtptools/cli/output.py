"""Where results go: data to stdout, everything else to stderr, progress only on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TextIO

import click

__all__ = ["ReaderGone", "emit", "note", "on_terminal", "progress", "status", "stream", "table"]


# Control characters in a name (an escape sequence, a carriage return) must not reach a terminal.
_CONTROL: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# Half a surrogate pair: how Python holds a byte of a name or of GGUF metadata that is not UTF-8. It cannot be printed.
_HALF: Final = re.compile("[\ud800-\udfff]")


class ReaderGone(Exception):
    """Nobody reads standard output any more (`| head`): what is there for its text alone may end. No error."""


def emit(data: Any, text: str, *, as_json: bool, quiet: bool) -> None:
    """Print a result: the JSON object, the text, or nothing. What standard output cannot show is escaped or replaced.

    A byte that is not UTF-8 becomes U+FFFD. Where the terminal's encoding lacks a character, JSON escapes it and
    text shows a question mark.
    """
    if as_json:
        text = _whole(json.dumps(data, indent=1, ensure_ascii=False, default=str))
        if _shown(text) != text:
            text = json.dumps(json.loads(text), indent=1)
        _echo(text)
    elif not quiet and text:
        _echo(_shown(_whole(text)))


def _echo(text: str, *, err: bool = False) -> None:
    """A reader that went away (`| head`) does not turn success into failure, nor a failure into success."""
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        _forget(sys.stderr if err else sys.stdout)


def stream(text: str) -> None:
    """A part of the output, as soon as it is there. Raises ReaderGone where nobody is left to write for."""
    try:
        click.echo(text, nl=False)
    except BrokenPipeError:
        _forget(sys.stdout)
        raise ReaderGone from None


def _forget(stream: TextIO) -> None:
    """Nobody reads it any more: what comes goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def note(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        _echo(_shown(_whole(text)), err=True)


def _whole(text: str) -> str:
    return _HALF.sub("\ufffd", text)


def _shown(text: str) -> str:
    """`text` with a question mark for every character that the encoding of standard output lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # no stdout at all: closed by the shell
    text = _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)
    return text.encode(encoding, "replace").decode(encoding)


def on_terminal() -> bool:
    """Is standard error one? It may be closed."""
    return sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def progress(total: int, label: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A callback for bytes done; a bar on stderr when that is a terminal."""
    if quiet or not on_terminal():
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
    if quiet or not on_terminal():
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
