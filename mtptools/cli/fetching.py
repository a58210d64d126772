"""Getting the bytes of remote tensors before they are worked on: all at once, with progress."""

from __future__ import annotations

from collections.abc import Iterable

from mtptools.cli.output import note, progress
from mtptools.hub import missing, prefetch
from mtptools.plan import human_bytes
from mtptools.tensors import Blob

__all__ = ["fetched"]


def fetched(wanted: Iterable[Blob], *, quiet: bool) -> None:
    """Fetch what is not here of these bytes; of a local checkpoint everything is."""
    blobs = list(wanted)
    absent = missing(blobs)
    if not absent.nbytes:
        return
    note(
        f"fetching {human_bytes(absent.nbytes)} in {absent.ranges} ranges of {absent.files} files; "
        "the same command goes on after a break",
        quiet=quiet,
    )
    with progress(absent.nbytes, "fetch", quiet=quiet) as done:
        prefetch(blobs, done)
