"""Options that several verbs share, spelled once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from mtptools.errors import UsageError

__all__ = ["PATH", "Writing", "examples", "generic_option", "link_option", "output_options", "writing_options"]

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path that is not empty: an unset shell variable must not mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the path is empty; is a shell variable unset?", param, ctx)
        return super().convert(value, param, ctx)


# Whether a path can be read is for opening it to find out: that error has an exit code of its own.
PATH: Final = _Path(path_type=Path, readable=False)


def _all(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


output_options = _all(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors; the exit code tells."),
    click.option("-v", "--verbose", is_flag=True, help="Say more: every tensor, every check that passed."),
)


generic_option = click.option(
    "--generic", is_flag=True, help="Take a GGUF of an unknown architecture as it stands; nothing of it is checked."
)


@dataclass(frozen=True)
class Writing:
    """What every writing verb was told: where to, how, and how to report."""

    out: Path
    dry_run: bool
    force: bool
    verify: bool
    as_json: bool
    quiet: bool
    verbose: bool


_writing_options = _all(
    click.option("-o", "--output", "out", required=True, type=PATH, help="File or folder to write."),
    click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
    click.option("--force", is_flag=True, help="Replace an existing output."),
    click.option(
        "--verify", is_flag=True, help="Verify the output at once (after graft with the decoder); the receipt keeps it."
    ),
    output_options,
)


def _named(out: Path) -> Path:
    """The output with a name of its own: `.` and `..` as what they stand for. Raises UsageError for the root."""
    if out.name not in ("", ".."):
        return out
    full = Path(os.path.abspath(out))  # noqa: PTH100  a link is named, not what it leads to
    if not full.name:
        raise UsageError("the output is the root folder", where="-o", hint="give a file or a folder of its own")
    return full


def writing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a writing verb, passed to it as one `writing`."""

    @wraps(function)
    def call(**values: Any) -> Any:
        writing = Writing(**{field.name: values.pop(field.name) for field in fields(Writing)})
        writing = replace(writing, out=_named(writing.out))
        return function(writing=writing, **values)

    return _writing_options(call)


# For verbs whose output keeps whole files of the input.
link_option = click.option(
    "--link",
    is_flag=True,
    help="Hard-link the shards in which nothing changes: no copy, no space. Edit neither then, they are one file.",
)


def examples(*lines: str) -> str:
    """An epilog with examples, kept line by line."""
    return "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines)
