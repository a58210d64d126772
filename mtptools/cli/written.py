"""--verify of the writing verbs: the levels of what was just written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.verifying import run
from mtptools.head import is_sidecar
from mtptools.report.verification import Verification
from mtptools.threshold import Threshold

__all__ = ["after_graft", "after_prune", "after_quantize", "static_check"]

Record = tuple[bool, dict[str, Any], str]


def _record(result: Verification) -> Record:
    data = result.to_json()
    del data["seconds"]  # a receipt has no clock
    return data["ok"], data, result.render()


def static_check(path: Path, *, generic: bool = False) -> Record:
    """L0 and L1 of a written output that has no trunk, or no head, to decode with."""
    return _record(run(open_checkpoint(path, generic=generic), parity=False, quiet=True))


def after_quantize(source: Checkpoint, *, quiet: bool) -> Callable[[Path], Record]:
    """All levels of a written output with a quantized head, measured against its source; a sidecar has no trunk."""

    def check(path: Path) -> Record:
        out = open_checkpoint(path, generic=source.generic)
        if is_sidecar(source):
            return _record(run(out, parity=False, quiet=True))
        return _record(run(out, parity=True, trunk=source, donor=source, quiet=quiet))

    return check


def after_prune(
    source: Checkpoint, trunk: Checkpoint | None, *, judged: bool = False, quiet: bool
) -> Callable[[Path], Record]:
    """All levels of a written output with a reduced head, or with the whole one again, measured against its source.

    A sidecar is decoded on the trunk of its source, or on one that was given.

    judged  what it loses was measured and accepted: only a dead head fails
    """
    threshold = Threshold(relative=0.0) if judged else Threshold()

    def check(path: Path) -> Record:
        out = open_checkpoint(path)
        holder = source if not is_sidecar(source) else trunk
        if holder is None:
            return _record(run(out, parity=False, donor=source, quiet=quiet))
        if not is_sidecar(out):
            return _record(run(out, parity=True, trunk=source, donor=source, threshold=threshold, quiet=quiet))
        return _record(run(holder, parity=True, head=out, alone=True, donor=source, threshold=threshold, quiet=quiet))

    return check


def after_graft(trunk: Checkpoint, donor: Checkpoint, *, quiet: bool) -> Callable[[Path], Record]:
    """All levels of a written graft, measured against its donor."""

    def check(path: Path) -> Record:
        out = open_checkpoint(path, generic=trunk.generic)
        return _record(run(out, parity=True, trunk=trunk, donor=donor, quiet=quiet))

    return check
