"""Where the verdict of `check` goes besides standard output: files, annotations, the step summary of a CI job."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from mtptools.errors import SystemFailure, UsageError
from mtptools.report.gate import Gate

__all__ = ["prepare", "publish"]

# What GitHub Actions says to the steps it runs.
_ON_GITHUB: Final = "GITHUB_ACTIONS"
_SUMMARY: Final = "GITHUB_STEP_SUMMARY"


# How a file of ours starts; one that starts otherwise may be somebody's work, and is not replaced.
_STARTS: Final = {"junit": b"<?xml ", "report": b'{\n "schema"'}


def prepare(files: Mapping[str, Path], others: Iterable[Path]) -> None:
    """See to it before the work that files can be written, and make their folders. Raises UsageError, SystemFailure.

    files  by option: "junit", "report";  others  that `verify` writes, and looks at by itself
    """
    for path in (*files.values(), *others):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error
    for option, path in files.items():
        if path.is_dir():
            raise UsageError("a folder stands there", where=path, hint=f"--{option} FILE")
        try:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                start = file.read(16)
                if start and not start.startswith(_STARTS[option]):
                    raise UsageError("a file that is no report stands there", where=path, hint="give another name")
        except OSError as error:
            raise _unwritable(path, error) from error


def publish(gate: Gate, *, junit: Path | None, report: Path | None) -> None:
    """Write what was asked for, and what GitHub Actions takes when it runs us. Raises SystemFailure."""
    if os.environ.get(_ON_GITHUB) == "true":
        from mtptools.report.annotations import workflow_commands

        for line in workflow_commands(gate):
            click.echo(line, err=True)
    if place := os.environ.get(_SUMMARY):
        from mtptools.report.summary import summary

        _write(Path(place), summary(gate), append=True)
    if junit is not None:
        from mtptools.report.junit import junit as as_junit

        _write(junit, as_junit(gate))
    if report is not None:
        _write(report, json.dumps(gate.to_json(), indent=1, default=str) + "\n")


def _write(path: Path, text: str, *, append: bool = False) -> None:
    """Whole or not at all; a step summary grows."""
    fresh = path if append else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(fresh, "a" if append else "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
        if not append:
            fresh.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if not append:
            fresh.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError) -> SystemFailure:
    return SystemFailure(
        f"cannot write: {error.strerror or error}", where=path, hint="give a file in a folder of yours"
    )
