"""Where the verdict of `check` goes besides standard output: files, annotations, the step summary of a CI job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from mtptools.errors import SystemFailure, UsageError
from mtptools.placing import put, unwritable
from mtptools.report.gate import Gate

__all__ = ["prepare", "publish"]

# What GitHub Actions says to the steps it runs.
_ON_GITHUB: Final = "GITHUB_ACTIONS"
_SUMMARY: Final = "GITHUB_STEP_SUMMARY"

# How a file of ours starts; one that starts otherwise may be somebody's work, and is not replaced.
_STARTS: Final = {
    "junit": re.compile(rb"<\?xml [^>]*>\s*<testsuites"),
    "report": re.compile(rb'\{\s*"schema": \d+,\s*"version": "[^"]*",\s*"ok": '),  # in `verify --json` "path" is next
}
_START: Final = 256  # bytes


def prepare(files: Mapping[str, Path], others: Iterable[Path]) -> None:
    """See to it before the work that files can be written, and make their folders. Raises UsageError, SystemFailure.

    files  by option: "junit", "report";  others  that `verify` writes, and looks at by itself
    """
    written = [*files.values(), *others]
    for path in written:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
    for option, path in files.items():
        if sum(os.path.realpath(path) == os.path.realpath(other) for other in written) > 1:
            raise UsageError("two reports, one file", where=path, hint="give each a name of its own")
        try:
            _check(option, path)
        except OSError as error:
            raise unwritable(path, error) from error


def _check(option: str, path: Path) -> None:
    """Raises OSError, and UsageError for what must not be replaced: a folder, a device, a file that is not ours."""
    if path.exists() and not path.is_file():
        raise UsageError("what stands there is no file", where=path, hint=f"--{option} FILE")
    tempfile.TemporaryFile(dir=path.parent).close()
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        start = file.read(_START)
        if start and not _STARTS[option].match(start):
            raise UsageError("a file that is no report stands there", where=path, hint="give another name")


def publish(gate: Gate, *, junit: Path | None, report: Path | None) -> list[SystemFailure]:
    """Write what was asked for, and what GitHub Actions takes when it runs us. Returns why some of it was not."""
    if os.environ.get(_ON_GITHUB) == "true":
        from mtptools.report.annotations import workflow_commands

        for line in workflow_commands(gate):
            click.echo(line, err=True)
    texts: list[tuple[Path, Callable[[Gate], str], bool]] = []
    if place := os.environ.get(_SUMMARY):
        from mtptools.report.summary import summary

        texts.append((Path(place), summary, True))
    if junit is not None:
        from mtptools.report.junit import junit as as_junit

        texts.append((junit, as_junit, False))
    if report is not None:
        texts.append((report, _as_json, False))
    failed = []
    for path, made, append in texts:
        try:
            (_append if append else put)(path, made(gate))
        except SystemFailure as error:
            failed.append(error)
    return failed


def _as_json(gate: Gate) -> str:
    return json.dumps(gate.to_json(), indent=1, default=str) + "\n"


def _append(path: Path, text: str) -> None:
    """The step summary grows."""
    try:
        with open(path, "a", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise unwritable(path, error) from error
