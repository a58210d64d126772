"""Options that several verbs share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

__all__ = ["PATH", "examples", "output_options", "reading_options", "writing_options"]

F = TypeVar("F", bound=Callable[..., Any])
PATH: Final = click.Path(path_type=Path)


def _all(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


output_options = _all(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors; the exit code tells."),
    click.option("-v", "--verbose", is_flag=True, help="Print every tensor."),
)

writing_options = _all(
    click.option("-o", "--output", "out", required=True, type=PATH, help="File or folder to write."),
    click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
    click.option("--force", is_flag=True, help="Replace an existing output."),
    click.option(
        "--verify", "verify_it", is_flag=True, help="Verify the output at once; the receipt keeps the result."
    ),
    output_options,
)

reading_options = output_options


def examples(*lines: str) -> str:
    """An epilog with examples, kept line by line."""
    return "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines)
