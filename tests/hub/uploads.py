"""The part of the hub's API that takes files: repos, preupload, LFS batch, commits."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler

from tests.hub.contents import Bytes
from tests.hub.server import TOKEN, Hub


class Uploads:
    """Takes uploads for `hub`; `refuse` is a status that commits are refused with."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.stored: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.commits: list[dict[str, object]] = []
        self.private: list[str] = []
        self.branches: list[str] = []
        self.refuse = 0
        hub.posts.append(self)

    def __call__(self, request: BaseHTTPRequestHandler, method: str, path: str) -> bool:
        body = _body(request)
        token = (request.headers.get("authorization") or "").removeprefix("Bearer ")
        if method == "PUT":
            return self._put(request, path.rsplit("/", 1)[1], body)
        if method != "POST":
            return False
        if token != TOKEN:
            request._refuse(401)
            return True
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            private = bool(asked.get("private")) or asked.get("visibility") == "private"
            self.hub.add(name, {}, private=private)
            self.private += [name] if private else []
            request.json({"url": f"{self.hub.url}/{name}", "name": name})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": _mode(f["path"]), "shouldIgnore": False} for f in files]
            request.json({"files": modes})
        elif path.endswith("/info/lfs/objects/batch"):
            request.json({"transfer": "basic", "objects": [self._action(o) for o in json.loads(body)["objects"]]})
        elif "/branch/" in path:
            self.branches.append(path.rsplit("/", 1)[1])
            request.json({})
        elif "/commit/" in path:
            self._commit(request, path, body)
        elif path == "/api/validate-yaml":
            request.json({"errors": [], "warnings": []})
        else:
            return False
        return True

    def _action(self, item: dict[str, object]) -> dict[str, object]:
        if item["oid"] in self.stored:
            return item
        return {**item, "actions": {"upload": {"href": f"{self.hub.cdn}/put/{item['oid']}"}}}

    def _put(self, request: BaseHTTPRequestHandler, oid: str, body: bytes) -> bool:
        self.puts.append(oid)
        assert hashlib.sha256(body).hexdigest() == oid
        self.stored[oid] = body
        request.json({})
        return True

    def _commit(self, request: BaseHTTPRequestHandler, path: str, body: bytes) -> None:
        if self.refuse:
            request._refuse(self.refuse)
            return
        name = path.removeprefix("/api/models/").split("/commit/")[0]
        branch = path.split("/commit/")[1]
        lines = [json.loads(line) for line in body.splitlines()]
        files = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = Bytes(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                files[value["path"]] = Bytes(self.stored[value["oid"]])
        pull = "create_pr=1" in request.path
        before = self.hub.repos[name].commits.get(self.hub.repos[name].refs.get(branch, ""), {})
        commit = self.hub.add(name, {**before, **files}, ref="refs/pr/1" if pull else branch)
        self.commits.append({"message": lines[0]["value"]["summary"], "branch": branch, "files": sorted(files)})
        answer = {"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit, "success": True}
        request.json({**answer, **({"pullRequestUrl": f"{self.hub.url}/{name}/discussions/1"} if pull else {})})


def _mode(path: str) -> str:
    return "lfs" if path.endswith((".safetensors", ".gguf", "tokenizer.json")) else "regular"


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("transfer-encoding") == "chunked":
        out = b""
        while size := int(request.rfile.readline(), 16):
            out += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
        return out
    return request.rfile.read(int(request.headers.get("content-length") or 0))
