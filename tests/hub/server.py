"""A hub on loopback: the API that is used of it, a second server for the bytes, and every fault a network has.

    with serving() as hub:
        hub.add("user/repo", {"config.json": Bytes(b"{}"), "model.safetensors": shard({"a": 100})})
        hub.faults.cut_every = 1 << 20

`hub.sent` counts bytes of bodies, `hub.cuts` closed connections; `hub.log` keeps every request. Codes and headers of
refusals are the real hub's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.hub.contents import Content

TOKEN: Final = "hf_loopback"
PIECE: Final = 256 << 10
_API: Final = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)(?:/(?P<what>revision|refs)(?:/(?P<rev>[^/]+))?)?")
_RESOLVE: Final = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<rev>[^/]+)/(?P<file>.+)")
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Faults:
    """What goes wrong with the bytes of weight files; nothing until it is set."""

    cut_every: int = 0  # close each connection after so many bytes of bodies
    ignore_range: bool = False
    refuse_range: bool = False  # 416
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # statuses of the next requests
    forever: int = 0  # one status for all of them
    shift: int = 0  # Content-Range is off by so much
    no_content_range: bool = False
    etag: str | None = None  # instead of the file's
    linked_etag: str | None = None
    grow: int = 0  # the total in Content-Range is longer
    encoding: str | None = None
    extra: int = 0  # bytes sent behind the end of the range
    uses: int = 0  # how often a signed place may be used; 0: always
    stall: float = 0.0  # seconds before each piece
    damage: bool = False  # the first byte of each body is another
    api: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # statuses of the next API requests


@dataclass
class Request:
    server: str  # hub or cdn
    method: str
    path: str
    range: str | None
    token: str | None


@dataclass
class Repo:
    commits: dict[str, dict[str, Content]]
    refs: dict[str, str]
    gated: bool = False
    private: bool = False


class Hub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.web: dict[str, Content] = {}  # path on the second server -> content, without signatures
        self.faults = Faults()
        self.log: list[Request] = []
        self.sent = 0
        self.cuts = 0
        self.signed: dict[str, int] = {}  # signature -> uses
        self.posts: list[Callable[[BaseHTTPRequestHandler, str, str], bool]] = []  # the upload API, where it is wanted
        self.guard = threading.Lock()
        self.servers = [self._server(_HubHandler), self._server(_CdnHandler)]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def _server(self, handler: type[_Handler]) -> ThreadingHTTPServer:
        server = _Server(("127.0.0.1", 0), type(handler.__name__, (handler,), {"hub": self}))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return server

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: dict[str, Content], *, ref: str = "main", **about: bool) -> str:
        """A commit of a repo; returns its id."""
        text = name + ref + "".join(f"{path}{content.sha256}" for path, content in sorted(files.items()))
        commit = hashlib.sha1(text.encode()).hexdigest()
        repo = self.repos.setdefault(name, Repo({}, {}))
        repo.commits[commit] = files
        repo.refs[ref] = commit
        repo.gated, repo.private = about.get("gated", repo.gated), about.get("private", repo.private)
        return commit

    def asked(self, server: str | None = None, path: str = "") -> list[Request]:
        return [request for request in self.log if server in (None, request.server) and path in request.path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    name = ""
    on_line = 0  # bytes of bodies that went over this connection
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def log_message(self, *args: object) -> None:
        pass

    def _note(self) -> str | None:
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        with self.hub.guard:
            self.hub.log.append(Request(self.name, self.command, self.path, self.headers.get("range"), token))
        return token

    def _refuse(self, status: int, code: str | None = None, fields: dict[str, str] | None = None) -> None:
        body = json.dumps({"error": code or "refused"}).encode()
        self.send_response(status)
        for key, value in (fields or {}).items():
            self.send_header(key, value)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send(self, content: Content, etag: str, faults: Faults, fields: dict[str, str]) -> None:
        """The body of a file, or of the range that was asked for."""
        match = _RANGE.fullmatch(self.headers.get("range") or "")
        start, stop = 0, content.size
        ranged = match is not None and not faults.ignore_range
        if match is not None and ranged:
            start, stop = int(match[1]), min(int(match[2]) + 1, content.size)
            if faults.refuse_range or start >= content.size:
                self._refuse(416, fields={"Content-Range": f"bytes */{content.size}"})
                return
        self.send_response(206 if ranged else 200)
        for key, value in fields.items():
            self.send_header(key, value)
        if ranged and not faults.no_content_range:
            at = start + faults.shift
            self.send_header("Content-Range", f"bytes {at}-{stop - 1 + faults.shift}/{content.size + faults.grow}")
        if faults.encoding:
            self.send_header("Content-Encoding", faults.encoding)
        self.send_header("ETag", f'"{faults.etag or etag}"')
        if faults.extra:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self._body(content, start, stop + faults.extra, faults)

    def _body(self, content: Content, start: int, stop: int, faults: Faults) -> None:
        end = min(stop, start + faults.cut_every - self.on_line) if faults.cut_every else stop
        at = start
        while at < end:
            if faults.stall:
                time.sleep(faults.stall)
            piece = content.read(at, min(PIECE, end - at)) or bytes(end - at)  # behind the end: zeros
            if faults.damage and at == start:
                piece = bytes([piece[0] ^ 1]) + bytes(piece[1:])
            with self.hub.guard:
                self.hub.sent += len(piece)
            self.on_line += len(piece)
            self.connection.sendall(piece)
            at += len(piece)
        if end < stop:
            with self.hub.guard:
                self.hub.cuts += 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_WR)


class _HubHandler(_Handler):
    name = "hub"

    def do_GET(self) -> None:
        token = self._note()
        path = urlsplit(self.path).path
        if path.startswith("/api/") and self.hub.faults.api:
            status, fields = self.hub.faults.api.pop(0)
            self._refuse(status, fields=fields)
        elif match := _API.fullmatch(path):
            self._api(match, token)
        elif match := _RESOLVE.fullmatch(path):
            self._resolve(match, token)
        elif not any(post(self, "GET", path) for post in self.hub.posts):
            self._refuse(404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._note()
        if not any(post(self, "POST", urlsplit(self.path).path) for post in self.hub.posts):
            self._refuse(404)

    def _files(self, name: str, revision: str, token: str | None) -> tuple[str, dict[str, Content]] | None:
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and token != TOKEN):
            self._refuse(404 if token else 401, "RepoNotFound")
            return None
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            self._refuse(404, "RevisionNotFound")
            return None
        return commit, repo.commits[commit]

    def _api(self, match: re.Match[str], token: str | None) -> None:
        name = match["repo"]
        if match["what"] == "refs":
            refs = [
                {"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in self.hub.repos[name].refs.items()
            ]
            self.json({"branches": refs, "tags": [], "converts": []})
            return
        found = self._files(name, unquote(match["rev"] or "main"), token)
        if found is None:
            return
        commit, files = found
        siblings = []
        for path, content in files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": content.size}
            if _is_lfs(path):
                entry["blobId"] = hashlib.sha1(path.encode()).hexdigest()
                entry["lfs"] = {"size": content.size, "sha256": content.sha256, "pointerSize": 135}
            else:
                entry["blobId"] = _git_blob(content)
            siblings.append(entry)
        self.json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _resolve(self, match: re.Match[str], token: str | None) -> None:
        found = self._files(match["repo"], unquote(match["rev"]), token)
        if found is None:
            return
        commit, files = found
        if self.hub.repos[match["repo"]].gated and token != TOKEN:
            self._refuse(403 if token else 401, "GatedRepo")
            return
        path = unquote(match["file"])
        if path not in files:
            self._refuse(404, "EntryNotFound")
            return
        content = files[path]
        if not _is_lfs(path):
            self._send(content, _git_blob(content), Faults(), {"X-Repo-Commit": commit})
            return
        with self.hub.guard:
            signature = f"s{len(self.hub.signed)}"
            self.hub.signed[signature] = 0
        self.send_response(302)
        where = f"{self.hub.cdn}/{match['repo']}/{commit}/{quote(path)}?X-Signature={signature}"
        for key, value in {
            "Location": where,
            "X-Repo-Commit": commit,
            "X-Linked-Etag": f'"{self.hub.faults.linked_etag or content.sha256}"',
            "X-Linked-Size": str(content.size),
            "Content-Length": "0",
        }.items():
            self.send_header(key, value)
        self.end_headers()


class _CdnHandler(_Handler):
    name = "cdn"

    def do_GET(self) -> None:
        self._note()
        hub, faults, parts = self.hub, self.hub.faults, urlsplit(self.path)
        with hub.guard:
            answer = faults.answers.pop(0) if faults.answers else (faults.forever, {}) if faults.forever else None
        if answer is not None:
            self._refuse(answer[0], fields=answer[1])
            return
        if parts.path in hub.web:
            content = hub.web[parts.path]
            self._send(content, content.sha256, faults, {})
            return
        signature = parse_qs(parts.query).get("X-Signature", [""])[0]
        with hub.guard:
            used = hub.signed.get(signature)
            if used is not None:
                hub.signed[signature] = used + 1
        if used is None or (faults.uses and used >= faults.uses):
            self._refuse(403)
            return
        user, name, commit, path = parts.path.lstrip("/").split("/", 3)
        content = hub.repos[f"{user}/{name}"].commits[commit][unquote(path)]
        self._send(content, f"cdn-{content.sha256[:8]}", faults, {})

    def do_PUT(self) -> None:
        self._note()
        if not any(post(self, "PUT", self.path) for post in self.hub.posts):
            self._refuse(404)


def _is_lfs(path: str) -> bool:
    return path.endswith((".safetensors", ".gguf", ".bin", "tokenizer.json"))


def _git_blob(content: Content) -> str:
    return hashlib.sha1(b"blob %d\0" % content.size + bytes(content.read(0, content.size))).hexdigest()


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    try:
        yield hub
    finally:
        hub.close()


def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
