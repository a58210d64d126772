"""An output that is one file and no checkpoint: is its place free, and all of it or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from mtptools.errors import OutputExistsError, SystemFailure, UsageError
from mtptools.placing import staging
from mtptools.sequential import writing

__all__ = ["check_file", "write_file"]


def check_file(out: Path, inputs: Sequence[Path], *, force: bool) -> None:
    """Before any work: is there a place for the output? Raises SystemFailure, UsageError, OutputExistsError."""
    if not out.parent.is_dir():
        raise SystemFailure("no such folder", where=out.parent, hint=f"mkdir -p {out.parent}")
    if out.exists() and not out.is_file():
        raise UsageError("the output is a file, and something else stands there", where=out, hint="give another path")
    if out.exists() and any(one.exists() and one.samefile(out) for one in inputs):
        raise UsageError("the output is one of the inputs", where=out, hint="give another path with -o")
    if os.path.lexists(out) and not force:
        raise OutputExistsError("the output exists", where=out, hint="add --force to replace it")


def write_file(parts: Iterable[bytes], size: int, out: Path, *, force: bool) -> None:
    """All of the file or nothing, and what stood there before if that fails. size is about what `parts` come to."""
    with staging(out) as stage:
        try:
            with writing(stage / out.name, size) as file:
                for part in parts:
                    file.write(part)
            if force:
                os.replace(stage / out.name, out)
            else:
                os.link(stage / out.name, out)  # not over what came to stand there meanwhile
        except FileExistsError as error:
            raise OutputExistsError("the output exists", where=out, hint="add --force to replace it") from error
        except OSError as error:
            raise SystemFailure(
                f"cannot write: {error.strerror or error}", where=out, hint="write to another folder"
            ) from error
