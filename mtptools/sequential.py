"""A large file written front to back, past the page cache.

A copy of many gigabytes through the cache evicts what it is still reading and waits for the disk at the end; written
with O_DIRECT it runs at the disk's pace and spares the cache. Small files, and filesystems or systems without
O_DIRECT, are written as usual.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Protocol

__all__ = ["Sequential", "writing"]

LARGE: Final = 256 << 20  # bytes from which it pays
BUFFER: Final = 8 << 20  # a multiple of every block size


class Sequential(Protocol):
    """What the writer needs of a file."""

    def write(self, data: bytes | memoryview, /) -> object: ...
    def tell(self) -> int: ...


class _Direct:
    def __init__(self, fd: int) -> None:
        self.fd, self.done, self.filled = fd, 0, 0
        self.buffer = mmap.mmap(-1, BUFFER)  # page-aligned, as O_DIRECT demands

    def write(self, data: bytes | memoryview, /) -> None:
        view = memoryview(data)
        while view:
            n = min(len(view), BUFFER - self.filled)
            self.buffer[self.filled : self.filled + n] = view[:n]
            self.filled += n
            view = view[n:]
            if self.filled == BUFFER:
                self._drain()

    def tell(self) -> int:
        return self.done + self.filled

    def _drain(self) -> None:
        with memoryview(self.buffer) as whole:
            at = 0
            while at < self.filled:
                with whole[at : self.filled] as rest:
                    try:
                        at += os.write(self.fd, rest)
                    except OSError as error:
                        # The rest is not aligned, after a short write or where blocks are larger: use the cache.
                        if error.errno != errno.EINVAL or not self._through_the_cache():
                            raise
        self.done += self.filled
        self.filled = 0

    def _through_the_cache(self) -> bool:
        """Turn O_DIRECT off; False when it was off already."""
        import fcntl

        flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return bool(flags & os.O_DIRECT)

    def finish(self) -> None:
        """The rest, which is no whole block, through the cache; then all of it to the disk."""
        self._through_the_cache()
        self._drain()
        os.fsync(self.fd)


@contextlib.contextmanager
def writing(path: Path, nbytes: int) -> Iterator[Sequential]:
    """A new file of about `nbytes`, written in order and on the disk at the end. Raises OSError."""
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    fd = -1
    if nbytes >= LARGE and hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):  # a filesystem without it
            fd = os.open(path, flags | os.O_DIRECT, 0o666)
    if fd < 0:
        path.unlink(missing_ok=True)  # some filesystems create the file and then refuse O_DIRECT
        with open(path, "xb") as handle:
            yield handle
            _sync(handle)
        return
    direct = _Direct(fd)
    try:
        yield direct
        direct.finish()
    finally:
        os.close(fd)
        direct.buffer.close()


def _sync(handle: IO[bytes]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
