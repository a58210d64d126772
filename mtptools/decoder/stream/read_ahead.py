"""Telling the system which bytes of a file are next, so that a disk has many requests at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from mtptools.decoder.parts import Part
from mtptools.tensors import NOWHERE, Blob

__all__ = ["WINDOW", "announce", "stored", "within"]

WINDOW: Final = 64 << 20
"""Bytes that are announced at a time: a disk is fast with many requests, and memory has room for what is read."""

PIECE: Final = 128 << 10
"""Bytes: of one announcement Linux heeds no more than a device's `read_ahead_kb`, whose default this is."""


def stored(parts: Sequence[Part]) -> Iterator[Blob]:
    """Where the bytes of parts are; nothing of computed tensors, whose rows alone know."""
    for part in parts:
        tensor = part.tensor
        low, high, at = part.start * tensor.row_bytes, part.stop * tensor.row_bytes, 0
        for blob in tensor.blobs:
            start, stop = max(low - at, 0), min(high - at, blob.nbytes)
            if start < stop and blob.path != NOWHERE:
                yield Blob(blob.path, blob.offset + start, stop - start)
            at += blob.nbytes


def announce(blobs: Iterable[Blob]) -> None:
    """These bytes are read soon. Where the system takes no advice, or not of this file, whoever reads it will see."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            for blob in blobs:
                _announce(blob)


def _announce(blob: Blob) -> None:
    with open(blob.path, "rb", buffering=0) as file:
        step = _heeded(os.fstat(file.fileno()).st_dev)
        for start in range(0, blob.nbytes, step):
            length = min(step, blob.nbytes - start)
            os.posix_fadvise(file.fileno(), blob.offset + start, length, os.POSIX_FADV_WILLNEED)


def within(blobs: Iterable[Blob], nbytes: int = WINDOW) -> Iterator[Blob]:
    """The first of them, so many bytes."""
    for blob in blobs:
        if nbytes <= 0:
            return
        yield replace(blob, nbytes=min(blob.nbytes, nbytes))
        nbytes -= blob.nbytes


@cache
def _heeded(device: int) -> int:
    """Bytes that one announcement of a file on this device may be of."""
    told = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        return max(int(told.read_text()) << 10, PIECE)
    except (OSError, ValueError):
        return PIECE
