"""One run of bytes from a server into a local file, through cut connections and busy servers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from mtptools.errors import SystemFailure
from mtptools.hub import client
from mtptools.hub.failures import AGAIN, failure
from mtptools.hub.remote import Busy, Expired, Remote

__all__ = ["Patience", "Stopped", "transfer"]

TRIES: Final = 6  # in a row that bring nothing
PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds between them
LONGEST: Final = 60.0  # seconds that a server may ask us to wait
PROGRESS: Final = 64 << 10  # bytes that count as getting somewhere

Sink = Callable[[int, bytes], None]


class Stopped(Exception):
    """Somebody else failed, or Ctrl-C: nothing to say."""


class Patience:
    """How often and how long to try again: a failure after progress counts as the first."""

    def __init__(self, stopped: threading.Event) -> None:
        self.stopped, self.failures = stopped, 0

    def progress(self) -> None:
        self.failures = 0

    def wait(self, error: Exception, address: str) -> None:
        """Return when it is time to try again. Raises SystemFailure when there were enough tries."""
        self.failures += 1
        if self.failures >= TRIES:
            if isinstance(error, (Busy, Expired)):
                raise SystemFailure(
                    f"gave up after {TRIES} tries: {error}", where=address, hint=f"wait a while, then {AGAIN}"
                ) from error
            raise failure(error, address) from error
        pause = PAUSES[min(self.failures, len(PAUSES)) - 1]
        if isinstance(error, Busy) and error.wait is not None:
            pause = min(error.wait, LONGEST)
        if self.stopped.wait(pause):
            raise Stopped from error


def transfer(remote: Remote, start: int, stop: int, sink: Sink, stopped: threading.Event) -> None:
    """Give bytes [start, stop) to `sink(offset, data)`, in order, each once.

    A cut connection goes on behind the last byte that came. Raises SystemFailure, CorruptError or Stopped.
    """
    cut = client.transport_error()
    patience = Patience(stopped)
    at, mark, renewed = start, start, False
    while at < stop:
        try:
            with remote.bytes_of(at, stop) as stream:
                for data in stream:
                    if stopped.is_set():
                        raise Stopped
                    if at + len(data) > stop:
                        raise SystemFailure("the server sends more than was asked for", where=remote.address)
                    sink(at, data)
                    at += len(data)
                if at < stop:
                    raise Busy(200, None) if at == mark else ConnectionError("the connection was cut")
        except (Busy, Expired, cut, ConnectionError) as error:
            if _offline(error):
                raise failure(error, remote.address) from error
            if not remote.ranged:
                at = mark  # it can only be had from its beginning
            if at - mark >= min(PROGRESS, stop - mark):
                patience.progress()
                mark, renewed = at, False
                continue  # a server that only cuts is asked again at once
            if isinstance(error, Expired) and not renewed:
                renewed = True
                continue  # the hub gives a new place
            patience.wait(error, remote.address)


def _offline(error: Exception) -> bool:
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled)
