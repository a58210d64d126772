"""Many runs of bytes at once: what is missing of them, joined, over several connections."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mtptools.errors import MtpToolsError, SystemFailure, UsageError
from mtptools.hub.failures import unwritable
from mtptools.hub.ranges import Range, coalesced, covered, joined, parts
from mtptools.hub.transfer import Stopped, transfer

if TYPE_CHECKING:
    from mtptools.hub.partial import Partial

__all__ = ["Progress", "fetch"]

CONNECTIONS: Final = 8
GAP: Final = 256 << 10  # bytes between two runs that are cheaper to fetch than to skip
EXTRA: Final = 200  # one byte in so many may be fetched to close gaps
PART: Final = 32 << 20  # bytes per request
TOGETHER: Final = 64  # files whose locks are held at once: a process may open only so many
SAVE: Final = 5.0  # seconds after which the record is brought up to date: what a kill may cost
TICK: Final = 0.1  # seconds between two reports of progress

Progress = Callable[[int], None]
Wanted = Iterable[tuple["Partial", int, int]]
Part = tuple["Partial", int, int]


def fetch(wanted: Wanted, progress: Progress | None = None) -> None:
    """Return when all of (file, offset, nbytes) are on the disk. `progress` is told of the bytes that came.

    The first error, or Ctrl-C, ends all of it; what came until then is kept. Raises SystemFailure or CorruptError.
    """
    asked: dict[Partial, list[Range]] = {}
    for file, offset, nbytes in wanted:
        asked.setdefault(file, []).append((offset, offset + nbytes))
    # In one order: two processes must not wait for each other.
    files = sorted((file for file in asked if file.unchecked or _absent(file, asked[file])), key=lambda f: f.record)
    try:
        _check_space({file: covered(_absent(file, asked[file])) for file in files})
        for at in range(0, len(files), TOGETHER):
            _together({file: asked[file] for file in files[at : at + TOGETHER]}, progress or (lambda n: None))
    except OSError as error:
        raise unwritable(error, files[0].path.parent) from error


def _together(asked: dict[Partial, list[Range]], progress: Progress) -> None:
    """Fetch what is missing of a few files, which nobody else fetches meanwhile."""
    with contextlib.ExitStack() as held:
        for file in asked:
            held.enter_context(file.locked())
            file.renew()
        _run(list(_requests({file: _absent(file, ranges) for file, ranges in asked.items()})), progress)
        for file in asked:
            file.finish()


def _absent(file: Partial, ranges: Iterable[Range]) -> list[Range]:
    return joined(run for start, stop in ranges for run in file.absent(start, stop - start))


def _requests(missing: dict[Partial, list[Range]]) -> Iterator[Part]:
    extra = sum(map(covered, missing.values())) // EXTRA
    for file, ranges in missing.items():
        if ranges and not file.remote.ranged:
            yield file, 0, file.size
            continue
        runs, spent = coalesced(ranges, GAP, extra)
        extra -= spent
        yield from ((file, start, stop) for start, stop in parts(runs, PART))


def _check_space(need: dict[Partial, int]) -> None:
    """Refuse before the first byte what the disk cannot hold. All files lie on the cache's disk."""
    total = sum(need.values())
    folder = next((file.path.parent for file in need), Path())
    free = shutil.disk_usage(folder).free if total else 0
    if total > free:
        raise SystemFailure(
            f"{total / 1e9:.3g} GB are to be fetched, {free / 1e9:.3g} GB are free",
            where=folder,
            hint="free some space, or choose another disk: MTPTOOLS_CACHE=/another/disk mtptools …",
        )


def connections() -> int:
    text = os.environ.get("MTPTOOLS_CONNECTIONS", "")
    if text and not (text.isdigit() and 1 <= int(text) <= 64):
        raise UsageError(f"MTPTOOLS_CONNECTIONS is {text!r}", hint="give a number from 1 to 64")
    return int(text) if text else CONNECTIONS


class _Work:
    """The parts that are left, and what became of the others."""

    def __init__(self, todo: list[Part]) -> None:
        self.parts: queue.SimpleQueue[Part] = queue.SimpleQueue()
        for part in todo:
            self.parts.put(part)
        self.stopped = threading.Event()
        self.errors: list[BaseException] = []
        self.guard = threading.Lock()
        self.came = 0

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                file, start, stop = self.parts.get_nowait()
                self._one(file, start, stop)
        except (queue.Empty, Stopped):
            pass
        except BaseException as error:
            self.errors.append(error)
            self.stopped.set()

    def _one(self, file: Partial, start: int, stop: int) -> None:
        with open(file.path, "r+b", buffering=0) as out:

            def sink(at: int, data: bytes) -> None:
                out.seek(at)
                view = memoryview(data)
                while view:
                    view = view[out.write(view) :]
                file.came(at, at + len(data))
                with self.guard:
                    self.came += len(data)

            transfer(file.remote, start, stop, sink, self.stopped)


def _run(todo: list[Part], progress: Progress) -> None:
    work = _Work(todo)
    # Daemons: a server that sends nothing must not keep the process alive after Ctrl-C.
    threads = [threading.Thread(target=work.run, daemon=True) for _ in range(min(connections(), len(todo)))]
    told, saved = 0, time.monotonic()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(TICK)
                came = work.came
                progress(came - told)
                told = came
                if time.monotonic() - saved >= SAVE:
                    _save(todo)
                    saved = time.monotonic()
    finally:
        work.stopped.set()
        for thread in threads:
            thread.join(1.0)
        _save(todo)
    progress(work.came - told)
    if work.errors:
        # What is wrong with the files says more than what is wrong with the network.
        raise next((error for error in work.errors if isinstance(error, MtpToolsError)), work.errors[0])


def _save(todo: list[Part]) -> None:
    for file in {part[0] for part in todo}:
        file.save()
