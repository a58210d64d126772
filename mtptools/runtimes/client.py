"""JSON over HTTP, with everything that can go wrong said in one line: no retry, no redirect, one deadline a request."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from queue import Empty, SimpleQueue
from typing import IO, Any, Final
from urllib.parse import urlsplit

from mtptools.errors import SystemFailure, UsageError

__all__ = ["Client", "base_url"]

MOST: Final = 256 << 20
"""Bytes of an answer that are read at most: a server may never stop."""

SHOWN: Final = 200


def base_url(url: str) -> str:
    """A server's address without the path of an API. Raises UsageError for what is none."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"{url!r} is not the address of a server", where="--runtime", hint="http://127.0.0.1:8080")
    if parts.username or parts.password:
        raise UsageError("a key in the address would be shown", where="--runtime", hint="--api-key-env NAME")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key, and a POST's body would be lost on the way."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class Client:
    """base: without a path; timeout: seconds for one whole request; key: sent as a bearer token."""

    def __init__(self, base: str, timeout: float, key: str | None = None) -> None:
        self.base, self.timeout, self._key = base, timeout, key
        host = urlsplit(base).hostname or ""
        proxies = [urllib.request.ProxyHandler({})] if host in ("localhost", "::1") or host.startswith("127.") else []
        self._opener = urllib.request.build_opener(_Stay(), *proxies)

    def get(self, path: str) -> Any:
        """Raises SystemFailure."""
        return self._json(path, self._read(path, None))

    def post(self, path: str, body: Any) -> Any:
        """Raises SystemFailure."""
        return self._json(path, self._read(path, json.dumps(body).encode()))

    def text(self, path: str) -> str | None:
        """None where the server has no such page."""
        try:
            return self._read(path, None).decode("utf-8", "replace")
        except SystemFailure as error:
            if isinstance(error.__cause__, urllib.error.HTTPError):
                return None
            raise

    def maybe(self, path: str) -> Any:
        """As `get`; None where the server answers, but with nothing of the kind."""
        found = self.text(path)
        try:
            return None if found is None else json.loads(found)
        except (ValueError, RecursionError):
            return None

    def failure(self, path: str, what: str, hint: str) -> SystemFailure:
        """A server may say the key back to us: it is not shown."""
        what, hint = (text.replace(self._key, "…") if self._key else text for text in (what, hint))
        return SystemFailure(what, where=self.base + path, hint=hint)

    def _json(self, path: str, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            start = data[:SHOWN].decode("utf-8", "replace").split("\n")[0]
            kind = "a web page" if start.lstrip()[:1] == "<" else f"no JSON ({start!r})"
            raise self.failure(path, f"the server answers with {kind}", "is this the address of its API?") from error

    def _read(self, path: str, body: bytes | None) -> bytes:
        """In a thread that is left behind when time is up: a socket's own limit is of each byte, not of all of them."""
        answers: SimpleQueue[bytes | Exception] = SimpleQueue()

        def work() -> None:
            try:
                answers.put(self._exchange(path, body))
            except Exception as error:
                answers.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            found = answers.get(timeout=self.timeout)
        except Empty as error:
            raise self._slow(path) from error
        if isinstance(found, Exception):
            raise found
        return found

    def _slow(self, path: str) -> SystemFailure:
        hint = f"--runtime-timeout {round(self.timeout * 2) or 1} if it is only slow"
        return self.failure(path, f"no answer within {self.timeout:g} s", hint)

    def _exchange(self, path: str, body: bytes | None) -> bytes:
        request = urllib.request.Request(self.base + path, body, {"Content-Type": "application/json"})
        if self._key:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            with self._opener.open(request, timeout=self.timeout) as reply:
                return self._whole(reply, path)
        except urllib.error.HTTPError as error:
            raise self._refused(path, error) from error
        except TimeoutError as error:
            raise self._slow(path) from error
        except (http.client.HTTPException, ConnectionError) as error:
            what = "the server ended the connection before it had answered"
            raise self.failure(path, what, "see its log: it may have died") from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._slow(path) from error
            reason = getattr(error.reason, "strerror", None) or error.reason
            hint = "start it, or check the address"
            if isinstance(error.reason, ssl.SSLError):
                hint = "export SSL_CERT_FILE=CA.pem for a certificate of your own"
            raise self.failure(path, f"no server answers: {reason}", hint) from error
        except OSError as error:
            raise self.failure(
                path, f"the connection failed: {error.strerror or error}", "check the address"
            ) from error

    def _whole(self, reply: IO[bytes], path: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        stated = getattr(reply, "headers", {}).get("Content-Length")
        while part := reply.read1(1 << 16):  # type: ignore[attr-defined]  # an HTTPResponse has it
            parts.append(part)
            size += len(part)
            if size > MOST:
                raise self.failure(path, "the answer does not end", "is this the address of its API?")
        if stated is not None and stated.isdecimal() and size < int(stated):
            raise http.client.IncompleteRead(b"", int(stated) - size)
        return b"".join(parts)

    def _refused(self, path: str, error: urllib.error.HTTPError) -> SystemFailure:
        try:
            text = error.read(1 << 16).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            text = ""
        hints = {401: "--api-key-env NAME", 403: "--api-key-env NAME", 404: "give the address without a path"}
        hint = hints.get(error.code, "see the server's log" if error.code >= 500 else "see the server's documentation")
        if 300 <= error.code < 400:
            hint = f"give the address it sends to: {error.headers.get('Location', '?')}"
        return self.failure(path, f"HTTP {error.code}: {_message(text) or error.reason}", hint)


def _message(text: str) -> str:
    """What an error page says, in one line."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return "" if text.lstrip()[:1] == "<" else " ".join(text.split())[:SHOWN]
    for key in ("error", "message", "detail"):
        if isinstance(tree, dict) and key in tree:
            tree = tree[key]
    return " ".join(str(tree).split())[:SHOWN]
