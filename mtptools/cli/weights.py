"""The importance matrix that a writing verb was given."""

from __future__ import annotations

from pathlib import Path

from mtptools.errors import UsageError
from mtptools.importance import Importance, read_importance

__all__ = ["read_weights"]


def read_weights(path: Path | None, out: Path) -> Importance | None:
    """Read it, unless the output would replace it. Raises UsageError, and what `read_importance` raises."""
    if path is None:
        return None
    if out.exists() and path.exists() and out.samefile(path):
        raise UsageError("the output is the importance matrix", where=out, hint="give another path with -o")
    return read_importance(path)
