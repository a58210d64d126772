"""How a person names what lies on the hub or on the web.

user/repo                        a model repo, at its main branch
user/repo@REVISION               a branch, a tag or a commit (`@refs/pr/3`; other slashes as %2F)
user/repo:Q4_K_M                 the GGUF of that type in it, as llama.cpp's -hf takes it
hf://user/repo[@REVISION][/FILE] one file, or one folder, of a repo
https://huggingface.co/…         the address a browser shows: of a repo, a folder or a file
https://…                        any other server: one file
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from mtptools.errors import UsageError

__all__ = ["PUBLIC_HUB", "Address", "endpoint", "parse"]

PUBLIC_HUB: Final = "https://huggingface.co"
_HUB_HOSTS: Final = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"
_REVISION: Final = r"refs/(?:pr|convert)/[^/:]+|[^/:]+"
_BARE: Final = re.compile(rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>{_REVISION}))?(?::(?P<tag>{_NAME}))?")
_HF: Final = re.compile(
    rf"(?P<repo>{_NAME}/{_NAME})(?:@(?P<revision>{_REVISION}))?(?::(?P<tag>{_NAME})|/(?P<file>.+))?/?"
)
_PAGE: Final = re.compile(
    rf"/(?P<repo>{_NAME}/{_NAME})(?:/(?:resolve|blob|raw|tree)/(?P<revision>{_REVISION})(?:/(?P<file>.+?))?)?/?"
)
_SCHEME: Final = re.compile(r"(hf|https?):/+", re.IGNORECASE)  # pathlib makes one slash of two
_OTHER_KINDS: Final = frozenset({"datasets", "spaces", "kernels", "buckets"})
_LOCAL: Final = (".gguf", ".safetensors", ".json", ".md", ".toml", ".txt")  # a path that is not there, not a repo
_HINT: Final = "hf://user/repo/FILE, hf://user/repo@REVISION/FILE, user/repo, user/repo:Q4_K_M, or an https address"


def endpoint() -> str:
    """The hub's address: HF_ENDPOINT, or the public hub."""
    return (os.environ.get("HF_ENDPOINT") or PUBLIC_HUB).rstrip("/")


@dataclass(frozen=True)
class Address:
    """A repo (with what is wanted of it), or the `url` of a file elsewhere.

    revision  as typed; None is the main branch
    file      path in the repo of a file or a folder
    tag       what one GGUF's name holds: its type
    url       with its query, which may be a signature; `str` leaves that out
    """

    repo: str | None = None
    revision: str | None = None
    file: str | None = None
    tag: str | None = None
    url: str | None = None

    def __str__(self) -> str:
        if self.url is not None:
            parts = urlsplit(self.url)
            host = parts.netloc.rpartition("@")[2]  # without a password
            return urlunsplit((parts.scheme, host, parts.path, "", ""))
        file = (self.file or "").replace("%", "%25")  # `parse` takes it for the start of an escape
        tail = f":{self.tag}" if self.tag else f"/{file}" if file else ""
        return f"{'hf://' if self.file else ''}{self.base}{tail}"

    @property
    def base(self) -> str:
        """The repo and its revision, `user/repo@revision`."""
        if self.revision is None:
            return str(self.repo)
        slashes = "/" if self.revision.startswith("refs/") else ""
        return f"{self.repo}@{quote(self.revision, safe=slashes)}"


def parse(text: str | Path) -> Address | None:
    """The address that `text` is; None for a local path.

    What exists on the disk is a local path; `user/repo` that does not is a repo. Takes what pathlib makes of an
    address (`hf:/user/repo`). Raises UsageError for one that cannot be opened.
    """
    text = str(text)
    scheme = _SCHEME.match(text)
    if scheme is None:
        if text.endswith(_LOCAL) or Path(text).exists():
            return None
        bare = _BARE.fullmatch(text)
        return None if bare is None else _in_repo(bare, text)
    rest = text[scheme.end() :].replace("\\", "/")
    if scheme[1].lower() == "hf":
        return _in_repo(_HF.fullmatch(rest.removeprefix("models/")), text)
    return _web(f"{scheme[1].lower()}://{rest}")


def _web(url: str) -> Address:
    try:
        parts = urlsplit(url)
        _ = parts.port  # a number, or ValueError
    except ValueError as error:
        raise UsageError(f"not an address ({error})", where=url, hint=_HINT) from error
    if not parts.hostname:
        raise UsageError("an address without a host", where=url, hint=_HINT)
    if parts.netloc == urlsplit(endpoint()).netloc or parts.hostname in _HUB_HOSTS:
        return _in_repo(_PAGE.fullmatch(parts.path), url)
    if not parts.path.strip("/") or parts.path.endswith("/"):
        raise UsageError("a web address must name a file", where=url, hint="https://HOST/…/model.gguf")
    return Address(url=url)


def _in_repo(match: re.Match[str] | None, text: str) -> Address:
    if match is None:
        kind = next((kind for kind in _OTHER_KINDS if f"/{kind}/" in text), None)
        raise UsageError(_other(kind) if kind else "not an address of a model repo", where=text, hint=_HINT)
    found = match.groupdict()
    if (kind := found["repo"].split("/")[0]) in _OTHER_KINDS:
        raise UsageError(_other(kind), where=text, hint=_HINT)
    file = unquote(found["file"]).rstrip("/") if found.get("file") else None
    if file is not None and any(part in ("", ".", "..") for part in file.split("/")):
        raise UsageError("not a path in a repo", where=text, hint=_HINT)
    revision = unquote(found["revision"]) if found["revision"] else None
    if revision is not None and any(part in ("", ".", "..") for part in revision.split("/")):
        raise UsageError("not a revision", where=text, hint=_HINT)
    return Address(found["repo"], revision, file, found.get("tag"))


def _other(kind: str) -> str:
    return f"an address under {kind}/: only model repos are read"
