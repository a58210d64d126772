"""Workflow commands of GitHub Actions: an annotation for every fault, on the artifact's file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mtptools.report.escape import visible
from mtptools.report.gate import Checked, Gate

__all__ = ["workflow_commands"]


def workflow_commands(gate: Gate, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Lines `::error file=…,title=…::…`: an error for each fault, a warning for what was not checked."""
    return [line for checked in gate.checked for line in _of(checked, environment)]


def _of(checked: Checked, environment: Mapping[str, str]) -> Iterator[str]:
    file = _within(checked.path, environment.get("GITHUB_WORKSPACE"))
    for fault in checked.faults:
        lines = [fault.text, *([f"fix: {fault.fix}"] if fault.fix else [])]
        yield _command("error", file, f"{checked.name}: {fault.title}", lines)
    if not checked.faults and checked.exit_code:
        yield _command("warning", file, f"{checked.name}: not checked", [checked.line])


def _within(path: str, workspace: str | None) -> str:
    """The path from the workspace, as GitHub knows files; as it is where it lies elsewhere."""
    if not workspace or "://" in path:
        return path
    try:
        return Path(path).resolve().relative_to(Path(workspace).resolve()).as_posix()
    except (ValueError, OSError):
        return path


def _command(kind: str, file: str, title: str, lines: Sequence[str]) -> str:
    message = _data("\n".join(map(visible, lines)))
    return f"::{kind} file={_property(file)},title={_property(title)}::{message}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(visible(text)).replace(":", "%3A").replace(",", "%2C")
