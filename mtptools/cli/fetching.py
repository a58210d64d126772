"""Getting the bytes of remote tensors before they are worked on: all at once, with progress."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from mtptools.cli.output import note, progress
from mtptools.errors import SystemFailure
from mtptools.hub import missing, prefetch
from mtptools.plan import human_bytes
from mtptools.tensors import PARTIAL, Blob

__all__ = ["fetched"]


def fetched(wanted: Iterable[Blob], *, quiet: bool, out: Path | None = None, writes: int = 0) -> None:
    """Fetch what is not here of these bytes; of a local checkpoint everything is.

    out, writes  where so many bytes will be written afterwards: what disk they share must hold both

    Raises SystemFailure and CorruptError.
    """
    blobs = list(wanted)
    absent = missing(blobs)
    if not absent.nbytes:
        return
    cache = next(blob.path for blob in blobs if blob.path in PARTIAL)
    if out is not None and cache.stat().st_dev == out.parent.stat().st_dev:
        free = shutil.disk_usage(out.parent).free
        if absent.nbytes + writes > free:
            raise SystemFailure(
                f"{human_bytes(absent.nbytes)} are to be fetched and {human_bytes(writes)} written, "
                f"{human_bytes(free)} are free",
                where=out.parent,
                hint="write to another disk, or fetch to one: MTPTOOLS_CACHE=/another/disk mtptools …",
            )
    note(
        f"fetching {human_bytes(absent.nbytes)} in {absent.ranges} ranges of {absent.files} files; "
        "the same command goes on after a break",
        quiet=quiet,
    )
    with progress(absent.nbytes, "fetch", quiet=quiet) as done:
        prefetch(blobs, done)
