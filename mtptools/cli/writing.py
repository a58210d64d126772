"""What every writing verb does with its plan: show it, write it, verify it, say what came out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mtptools.cli.command_line import command_line
from mtptools.cli.fetching import fetched
from mtptools.cli.options import Writing
from mtptools.cli.output import emit, note, progress
from mtptools.errors import UsageError
from mtptools.hub import missing
from mtptools.plan import Plan, human_bytes

__all__ = ["carry_out", "check_plan"]


def _check_name(plan: Plan, out: Path) -> None:
    if plan.folder and out.suffix in (".gguf", ".safetensors"):
        raise UsageError(
            "the output is a folder, and its name is a file's", where=out, hint=f"-o {out.with_suffix('')}"
        )


def check_plan(plan: Plan, writing: Writing) -> None:
    """Refuse before the hours, not after them. Raises UsageError, OutputExistsError, SystemFailure."""
    from mtptools.placing import check_output

    _check_name(plan, writing.out)
    out = Path(os.path.abspath(writing.out))  # noqa: PTH100  a link is named, not what it leads to
    check_output(plan, out, force=writing.force)


def carry_out(
    plan: Plan,
    told: Writing,
    verify: Callable[[Path], tuple[bool, dict[str, Any], str]] | None,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Carry out a plan and return the exit code.

    verify  called with the output when --verify was given: (passed, record for the receipt, text)
    more    what else the JSON object says
    """
    from mtptools.placing import check_output
    from mtptools.writer import add_verification, write

    quiet, as_json = told.quiet, told.as_json
    # Absolute, because the folder that is replaced may be the one the command runs in.
    out = Path(os.path.abspath(told.out))  # noqa: PTH100  a link is named, not what it leads to
    _check_name(plan, told.out)
    if told.dry_run:
        check_output(plan, out, force=told.force)
        absent = missing(plan.read())
        fetches = f"\nto fetch: {human_bytes(absent.nbytes)} in {absent.ranges} ranges of {absent.files} files"
        emit(
            {**(more or {}), **plan.to_json(), "fetch": asdict(absent)},
            plan.render() + (fetches if absent.nbytes else "") + "\ndry run: nothing was written",
            as_json=as_json,
            quiet=quiet,
        )
        return 0
    for line in [plan.render()] if told.verbose else plan.facts:
        note(line, quiet=quiet)
    check_output(plan, out, force=told.force)  # before anything is fetched
    fetched(plan.read(), quiet=quiet or as_json, out=out, writes=plan.new_bytes)
    with progress(plan.nbytes - plan.linked_bytes, plan.verb, quiet=quiet) as done:
        written = write(plan, out, force=told.force, progress=done, command=command_line())
    head = [entry for entry in plan.entries if entry.head]

    def shown(path: Path) -> Path:
        """A path below the output as it was asked for."""
        return told.out.parent / path.relative_to(out.parent)

    lines = [
        f"{plan.verb}: {shown(written.path)} ({len(plan.entries)} tensors, {human_bytes(plan.nbytes)}; "
        f"head: {len(head)} tensors, {human_bytes(sum(entry.nbytes for entry in head))})",
        plan.space,
        f"receipt: {shown(written.receipt_path)}",
    ]
    data = {
        **(more or {}),
        "output": str(shown(written.path)),
        "plan": plan.to_json(),
        "receipt": written.receipt,
    }
    passed = True
    if verify is not None:
        passed, record, text = verify(written.path)
        add_verification(written, record)
        data["verification"] = record
        lines.append(text)
    emit(data, "\n".join(lines), as_json=as_json, quiet=quiet)
    return 0 if passed else 1
