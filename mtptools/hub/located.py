"""From what a person gives for a path to a path on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from mtptools.errors import NotACheckpointError, typed
from mtptools.hub.address import parse
from mtptools.hub.mirrors import Origin, mirror, unregistered

__all__ = ["located"]


def located(path: Path) -> tuple[Path, Origin | None]:
    """Where it is on this machine: a path that is here, or the mirror of what an address names."""
    if path.name in ("", ".."):
        path = Path(os.path.abspath(path))  # noqa: PTH100  with a name of its own; a link is not followed
    if path.exists():
        if (address := unregistered(path)) is not None:
            raise NotACheckpointError(
                f"only parts of what is read are here: {address}",
                where=path,
                hint=f"mtptools inspect {typed(address)}",
            )
        return path, None
    named = parse(path)
    if named is None:
        return path, None
    if named.url is None and ":" not in str(path) and path.parent.is_dir():  # a folder's name, mistyped, or a repo's?
        raise NotACheckpointError(
            f"no such file or folder in {path.parent}", where=path, hint=f"the repo of that name is hf://{path}"
        )
    return mirror(named)
