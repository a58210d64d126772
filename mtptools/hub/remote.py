"""A file on a server: where it is, what identifies it, and how one run of its bytes is asked for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from mtptools.errors import CorruptError, SystemFailure
from mtptools.hub import client
from mtptools.hub.failures import AGAIN, raise_for

__all__ = ["BUSY", "Busy", "Expired", "Remote", "bare_etag", "busy"]

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524})
EXPIRED: Final = frozenset({400, 401, 403, 404, 410})  # what a store answers to an old signature
MAX_REDIRECTS: Final = 8
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class Busy(Exception):
    """The server asks to come back later, after `wait` seconds if it says so."""

    def __init__(self, status: int, wait: float | None) -> None:
        super().__init__(f"the server answers {status}")
        self.wait = wait


class Expired(Exception):
    """The place that the hub sent us to no longer takes us."""


def busy(response: Any) -> Busy:
    """What an answer with a status of BUSY is raised as."""
    after = response.headers.get("retry-after", "")
    return Busy(response.status_code, float(after) if after.isdecimal() else None)


def bare_etag(etag: str | None) -> str | None:
    """An ETag without its quotes and its weakness."""
    return etag.removeprefix("W/").strip('"') if etag else None


@dataclass(eq=False)
class Remote:
    """`size` bytes at `url`.

    address  what a person typed for it, for messages
    etag     what identifies the content: of a hub's file its sha256 or its git blob, else what the server calls it
    hub      the url is of the hub, which names the etag itself and sends us elsewhere for the bytes
    ranged   the server serves parts of it, as far as is known
    """

    url: str
    size: int
    etag: str | None
    address: str
    hub: bool
    ranged: bool = True
    _place: str | None = field(default=None, init=False)  # where the hub sent us: signed, good for a while
    _seen: dict[tuple[str, str], str] = field(default_factory=dict, init=False)  # what each server calls the content

    @contextlib.contextmanager
    def bytes_of(self, start: int, stop: int) -> Iterator[Iterator[bytes]]:
        """The bytes [start, stop), as they come in.

        Raises Busy and Expired, which are worth another try, the client's own errors, which are too, and
        CorruptError or SystemFailure, which are not.
        """
        with self.answer(start, stop) as response:
            server = client.origin(str(response.url))
            if server != client.origin(self.url) and response.status_code in EXPIRED:
                self._place = None
                raise Expired(f"{server[1]} answers {response.status_code}")
            self._check(response, start, stop)
            yield response.iter_raw()

    @contextlib.contextmanager
    def answer(self, start: int, stop: int) -> Iterator[Any]:
        """What is answered to a request for these bytes, where the redirects end. Its body has not been read."""
        url = self._place or self.url
        for _ in range(MAX_REDIRECTS):
            response = self._send(url, f"bytes={start}-{stop - 1}")
            try:
                if response.status_code in REDIRECTS and "location" in response.headers:
                    self._linked(response)
                    url = self._leads(url, response.headers["location"])
                    continue
                self._place = url if client.origin(url) != client.origin(self.url) else None
                yield response
                return
            finally:
                response.close()
        raise SystemFailure("the server sends us in a circle", where=self.address, hint="check the address")

    def _send(self, url: str, run: str) -> Any:
        http, fields = client.session(), client.headers(url) | {"Range": run}
        try:
            request = http.build_request("GET", url, headers=fields, timeout=client.TIMEOUT)
        except Exception as error:  # which of its own the client raises is not documented
            raise SystemFailure(f"not an address that can be opened ({error})", where=self.address) from error
        return http.send(request, stream=True, follow_redirects=False)

    def _leads(self, url: str, location: str) -> str:
        """Where a redirect of `url` leads."""
        try:
            target = urljoin(url, location)
            scheme = urlsplit(target).scheme
        except ValueError:
            scheme = ""
        if scheme not in ("http", "https"):
            raise SystemFailure(f"the server leads to no web address: {location[:200]!r}", where=self.address)
        if url.startswith("https:") and scheme != "https":
            raise SystemFailure("the server leads from https to an open line", where=self.address)
        return target

    def _linked(self, response: Any) -> None:
        """The hub says on its redirect what the file is."""
        etag = bare_etag(response.headers.get("x-linked-etag"))
        size = response.headers.get("x-linked-size")
        if self.hub and ((etag and self.etag and etag != self.etag) or (size and size != str(self.size))):
            raise self._changed(f"it was {self.etag}, {self.size} bytes, now {etag}, {size} bytes")

    def _check(self, response: Any, start: int, stop: int) -> None:
        status = response.status_code
        if status in BUSY:
            raise busy(response)
        if status == 416:
            raise self._changed(f"the server has no bytes {start} to {stop - 1}, of {self.size}")
        if status >= 400:
            raise_for(response, self.address)
        if (coding := response.headers.get("content-encoding", "identity")) != "identity":
            raise SystemFailure(f"the server sends {coding} where stored bytes were asked for", where=self.address)
        if status == 200:
            length = response.headers.get("content-length")
            if (start, stop) != (0, self.size):
                raise self._ignores_ranges()
            if length is not None and length != str(self.size):
                raise self._changed(f"it was {self.size} bytes long, now {length}")
            self.ranged = False
        elif status == 206:
            stated = response.headers.get("content-range", "")
            match = _CONTENT_RANGE.fullmatch(stated)
            if match is None or (int(match[1]), int(match[2])) != (start, stop - 1):
                raise SystemFailure(
                    f"asked for bytes {start}-{stop - 1}, the server sends {stated or 'it does not say which'}",
                    where=self.address,
                    hint="a proxy between may be at fault; try without it",
                )
            if int(match[3]) != self.size:
                raise self._changed(f"it was {self.size} bytes long, now {match[3]}")
        else:
            raise SystemFailure(f"the server answers {status}", where=self.address, hint=AGAIN)
        self._same(response)

    def _same(self, response: Any) -> None:
        """One server calls one content by one name."""
        name = bare_etag(response.headers.get("etag")) or response.headers.get("last-modified")
        if name is None:
            return
        before = self._seen.setdefault(client.origin(str(response.url)), name)
        if not self.hub and self.etag is not None:
            before = self.etag
        if name != before:
            raise self._changed(f"the server called it {before}, and now {name}")

    def _changed(self, how: str) -> CorruptError:
        pin = "pin the commit: user/repo@COMMIT, then try again" if self.hub else "run the same command again"
        return CorruptError(f"the file changed while it was read: {how}", where=self.address, hint=pin)

    def _ignores_ranges(self) -> SystemFailure:
        other = f"hf download {self.address.removeprefix('hf://')}" if self.hub else f"curl -LO {self.address}"
        return SystemFailure(
            f"the server ignores byte ranges: the whole file of {self.size / 1e9:.3g} GB would be needed",
            where=self.address,
            hint=f"{other}, then give the local path",
        )
