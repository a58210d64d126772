"""A local file of the right size of which only parts have arrived, and the record of which.

The data are on the disk before the record says so, and a record that does not fit its file is thrown away with it:
what the record says is here can be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mtptools.errors import CorruptError
from mtptools.hub.failures import unwritable
from mtptools.hub.fetch import fetch
from mtptools.hub.ranges import Range, absent, add, covered, joined
from mtptools.hub.remote import Remote

__all__ = ["Partial"]

VERSION: Final = 1
AHEAD: Final = 256 << 10  # bytes that take about as long as a request of its own
MOST_AHEAD: Final = 8 << 20


class Partial:
    """The file at `path`, with the bytes of `remote` as far as they have arrived.

    record  the JSON file that says how far; it lies outside of the model's folder
    digest  ("sha256", hex) or ("git", hex of git's blob id): what the whole file must have
    """

    def __init__(self, path: Path, record: Path, remote: Remote, digest: tuple[str, str] | None = None) -> None:
        self.path, self.record, self.remote, self.digest = path, record, remote, digest
        self.arrived: list[Range] = []
        self._file: tuple[int, int] | None = None  # device and inode of the file in which they are
        self.whole = False  # and checked, where a digest is known
        self._guard = threading.Lock()
        self._ahead, self._next = AHEAD, -AHEAD - 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            record.parent.mkdir(parents=True, exist_ok=True)
            if not self.reload():
                with self.locked():  # whoever fetches a file that is there already is not waited for
                    if not self.reload():
                        self._begin()
        except OSError as error:
            raise unwritable(error, path) from error

    @property
    def size(self) -> int:
        return self.remote.size

    def need(self, offset: int, nbytes: int) -> None:
        """Return when these bytes are in the file. Raises SystemFailure or CorruptError.

        That also where another process threw the file away, and began another: its holes are not what arrived here.
        Nobody said before that they would be wanted: a little more than asked is fetched, and the more the longer
        the file is read on from there. `mtptools.hub.prefetch` fetches what it is told and nothing else.
        """
        if not (missing := self.absent(offset, nbytes)):
            if self._inode() != self._file:
                raise self._replaced()
            return
        start = missing[0][0]
        near = 0 <= start - self._next <= AHEAD
        self._ahead = min(2 * self._ahead, MOST_AHEAD) if near else AHEAD
        self._next = max(offset + nbytes, start + self._ahead)
        fetch([(self, start, self._next - start)])

    def missing(self, offset: int, nbytes: int) -> int:
        """How many of these bytes are not here yet."""
        return covered(self.absent(offset, nbytes))

    def absent(self, offset: int, nbytes: int) -> list[Range]:
        """The runs of them that are not here; nothing behind the file's end is."""
        with self._guard:
            return absent(self.arrived, offset, min(offset + nbytes, self.size))

    @property
    def unchecked(self) -> bool:
        """Every byte is here, and was not compared with the digest yet."""
        return not self.whole and not self.absent(0, self.size)

    def came(self, start: int, stop: int) -> None:
        """Bytes [start, stop) have been written."""
        with self._guard:
            add(self.arrived, start, stop)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Alone among all processes that fetch this file."""
        from filelock import FileLock

        with FileLock(f"{self.record}.lock"):
            yield

    def reload(self) -> bool:
        """Take over what the record says, of this process or another; False when there is none that fits."""
        inode = self._inode()
        try:
            stored = json.loads(self.record.read_bytes())
            ranges = joined((int(a), int(b)) for a, b in stored["ranges"])
            fits = (stored["version"], stored["size"], stored["etag"]) == (VERSION, self.size, self.remote.etag)
            fits = fits and self.path.stat().st_size == self.size
            fits = fits and (not ranges or (ranges[0][0] >= 0 and ranges[-1][1] <= self.size))
            fits = fits and self._file in (None, inode)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        if fits:
            with self._guard:
                self.arrived = joined([*self.arrived, *ranges])
            self.whole = bool(stored.get("whole")) and not self.absent(0, self.size)
            self._file = inode
        return fits

    def renew(self) -> None:
        """`reload` of a file that was here. Raises CorruptError when it was thrown away meanwhile."""
        if not self.reload():
            raise self._replaced()

    def _inode(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _replaced(self) -> CorruptError:
        return CorruptError(
            "the file changed while it was read: another process began it anew, or it was deleted from the cache",
            where=self.remote.address,
            hint="run the same command again",
        )

    def _begin(self) -> None:
        """A file of holes, and a record that says that nothing is here."""
        self.arrived, self.whole = [], False
        self.record.unlink(missing_ok=True)
        new = self.record.with_name(self.record.name + ".data")
        with open(new, "wb") as file:
            file.truncate(self.size)
        os.replace(new, self.path)  # the old file is there until then: the new one gets another inode
        self._file = self._inode()
        self._write()

    def save(self) -> None:
        """Put what has arrived on the disk, then into the record. The caller holds the lock."""
        with self._guard:
            ranges = list(self.arrived)
        fd = os.open(self.path, os.O_RDWR)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        self._write(ranges)

    def _write(self, ranges: Sequence[Range] = ()) -> None:
        stored: dict[str, Any] = {
            "version": VERSION,
            "size": self.size,
            "etag": self.remote.etag,
            "address": self.remote.address,
            "whole": self.whole,
            "ranges": ranges,
        }
        new = self.record.with_name(self.record.name + ".new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(stored, file)
            file.flush()
            if ranges:
                os.fsync(file.fileno())
        os.replace(new, self.record)

    def finish(self) -> None:
        """Once every byte is here: compare with what the server says the file is. The caller holds the lock.

        Raises CorruptError, and throws the data away.
        """
        if not self.unchecked:
            return
        if self.digest is not None and (found := self._digest(self.digest[0])) != self.digest[1]:
            self._begin()
            raise CorruptError(
                f"all {self.size} bytes came, but their digest is {found}, not {self.digest[1]}",
                where=self.remote.address,
                hint="run the same command again: the file is fetched anew",
            )
        self.whole = True
        self.save()

    def _digest(self, kind: str) -> str:
        state = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {self.size}\0".encode())
        with open(self.path, "rb") as file:
            while data := file.read(1 << 20):
                state.update(data)
        return state.hexdigest()
