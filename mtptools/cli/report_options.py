"""--html and --markdown: a verification, or a bench, as a file to publish."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from mtptools.cli.command_line import command_line
from mtptools.cli.options import PATH
from mtptools.errors import UsageError
from mtptools.placing import put, unwritable

__all__ = ["check_reports", "report_options", "write_reports"]

F = TypeVar("F", bound=Callable[..., Any])

# How a report of this tool starts; a file that starts otherwise may be somebody's work, and is not replaced.
_STARTS: Final = {"--html": "<!doctype html>", "--markdown": "<!-- mtptools "}


def report_options(function: F) -> F:
    """The options `--html FILE` and `--markdown FILE`, passed as `html` and `markdown`, each None when not given."""
    markdown = click.option("--markdown", type=PATH, help="Write the report as GitHub Markdown; an earlier one goes.")
    html = click.option("--html", type=PATH, help="Write the report as one HTML file; an earlier one goes.")
    return html(markdown(function))


def check_reports(html: Path | None, markdown: Path | None) -> None:
    """Find out before the hours whether the reports can be written. Raises UsageError, SystemFailure."""
    for option, path in (("--html", html), ("--markdown", markdown)):
        if path is None:
            continue
        if not (path.is_file() or not path.exists()) or not path.parent.is_dir():
            raise UsageError("a report cannot be written there", where=path, hint=f"{option} FILE in a folder there is")
        try:
            start = _start(path)
            tempfile.TemporaryFile(dir=path.parent).close()
        except OSError as error:
            raise unwritable(path, error, "the report") from error
        if start and not start.startswith(_STARTS[option]):
            raise UsageError("a file that is no report stands there", where=path, hint=f"{option} under another name")
    if html is not None and html == markdown:
        raise UsageError("two reports, one file", where=html, hint="--html report.html --markdown report.md")


def write_reports(data: Mapping[str, Any], html: Path | None, markdown: Path | None) -> list[Path]:
    """Write what was asked for from a verification's JSON object (`Verification.to_json()`), or a bench's.

    Each file is written whole or not at all. Returns the paths written. Raises SystemFailure, UsageError.
    """
    if html is None and markdown is None:
        return []
    check_reports(html, markdown)
    if "command" not in data and (ctx := click.get_current_context(silent=True)) is not None:
        data = {**data, "command": command_line(ctx)}
    if html is not None:
        from mtptools.report.html import html_report

        put(html, html_report(data), "the report")
    if markdown is not None:
        from mtptools.report.markdown import markdown_report

        put(markdown, markdown_report(data), "the report")
    return [path for path in (html, markdown) if path is not None]


def _start(path: Path) -> str:
    """The first characters of a file that is there."""
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        return file.read(64).decode("utf-8", "replace").lstrip("\ufeff").lower()
