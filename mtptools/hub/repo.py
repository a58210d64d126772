"""What a repo of the hub holds at a commit, asked once and remembered."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from mtptools.errors import MtpToolsError, NotACheckpointError, SystemFailure
from mtptools.hub import client
from mtptools.hub.address import Address, endpoint
from mtptools.hub.failures import failure
from mtptools.hub.remote import BUSY, Remote, busy
from mtptools.hub.transfer import Patience

__all__ = [
    "COMMIT",
    "RECORDS",
    "Entry",
    "Listing",
    "cache_root",
    "cached_by_hub",
    "can_be_named",
    "listing",
    "replace_file",
    "repo_root",
]

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
RECORDS: Final = ".ranges"  # the folder of records, beside the folder with the files
LISTING: Final = "listing.json"
DEFAULT: Final = "main"
_UNNAMEABLE: Final = re.compile(r"[\\:\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True)
class Entry:
    """One file of a repo: its path there, its bytes, and what the hub says of its content."""

    name: str
    size: int
    sha256: str | None
    blob: str | None

    @property
    def digest(self) -> tuple[str, str] | None:
        return ("sha256", self.sha256) if self.sha256 else ("git", self.blob) if self.blob else None


@dataclass(frozen=True)
class Listing:
    """All files of `repo` at `commit`."""

    repo: str
    commit: str
    files: tuple[Entry, ...]

    @property
    def root(self) -> Path:
        """The folder of this commit in the cache."""
        return repo_root(self.repo) / self.commit

    @property
    def folder(self) -> Path:
        """The folder with the repo's files: it has the repo's name, which stands in reports."""
        return self.root / self.repo.split("/")[1]

    def record(self, name: str) -> Path:
        return self.root / RECORDS / f"{name}.json"

    def remote(self, entry: Entry, address: Address) -> Remote:
        url = f"{endpoint()}/{self.repo}/resolve/{self.commit}/{quote(entry.name)}"
        shown = str(Address(self.repo, address.revision, entry.name))
        return Remote(url, entry.size, entry.sha256 or entry.blob, shown, hub=True)


def cache_root() -> Path:
    """MTPTOOLS_CACHE, or `mtptools` in huggingface_hub's own folder (HF_HOME)."""
    if chosen := os.environ.get("MTPTOOLS_CACHE"):
        return Path(chosen).expanduser().resolve()
    from huggingface_hub import constants

    return (Path(constants.HF_HOME) / "mtptools").resolve()


def repo_root(repo: str) -> Path:
    host = re.sub(r"[^\w.\-]", "_", urlsplit(endpoint()).netloc)
    return cache_root() / host / repo.replace("/", "--")


def replace_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def listing(address: Address) -> Listing:
    """The files of an address's repo at its revision. Asks the hub unless the revision is a known commit.

    Raises NotACheckpointError (no such repo, no such revision), InputError (gated) or SystemFailure.
    """
    repo = str(address.repo)
    revision = address.revision or DEFAULT
    if COMMIT.fullmatch(revision) and (known := _remembered(repo, revision)):
        return known
    if client.offline():
        commit = _commit_of(repo, revision)
        known = (_remembered(repo, commit) or _from_hub_cache(repo, commit)) if commit else None
        if known is None:
            raise failure(_offline_error(), str(address))
        return known
    found = _ask(repo, revision, address)
    with contextlib.suppress(OSError):  # what is whole in a cache that cannot be written can be read
        replace_file(found.root / RECORDS / LISTING, json.dumps(asdict(found)))
        replace_file(repo_root(repo) / "refs" / quote(revision, safe=""), found.commit)
    return found


def _offline_error() -> Exception:
    from huggingface_hub.errors import OfflineModeIsEnabled

    return OfflineModeIsEnabled()


def _remembered(repo: str, commit: str) -> Listing | None:
    try:
        stored = json.loads((repo_root(repo) / commit / RECORDS / LISTING).read_bytes())
        rows = ((row["name"], row["size"], row["sha256"], row["blob"]) for row in stored["files"])
        return Listing(repo, commit, tuple(_entries(rows)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _commit_of(repo: str, revision: str) -> str | None:
    """The commit that a revision had when it was last asked for, by this tool or by huggingface_hub."""
    from huggingface_hub import constants

    if COMMIT.fullmatch(revision):
        return revision
    theirs = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "refs" / revision
    for ref in (repo_root(repo) / "refs" / quote(revision, safe=""), theirs):
        if ref.is_file():
            return ref.read_text(encoding="utf-8").strip()
    return None


def _from_hub_cache(repo: str, commit: str) -> Listing | None:
    """What huggingface_hub downloaded of this commit, as if it were all there is."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots" / commit
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = (Entry(path.relative_to(folder).as_posix(), path.stat().st_size, None, None) for path in files)
    return Listing(repo, commit, tuple(entries)) if files else None


def cached_by_hub(listing: Listing, entry: Entry) -> Path | None:
    """The file if huggingface_hub has downloaded it whole."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(listing.repo, entry.name, revision=listing.commit)
    path = Path(found) if isinstance(found, str) else None
    return path if path is not None and path.is_file() and path.stat().st_size == entry.size else None


def _ask(repo: str, revision: str, address: Address) -> Listing:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint(), library_name="mtptools")
    cut = client.transport_error()
    patience = Patience(threading.Event())
    while True:
        try:
            info = api.model_info(repo, revision=revision, files_metadata=True, timeout=30)
            break
        except Exception as error:
            answer: Any = getattr(error, "response", None)
            status = getattr(answer, "status_code", None)
            if status in BUSY:
                patience.wait(busy(answer), str(address))
            elif isinstance(error, cut) and status is None:
                patience.wait(error, str(address))
            else:
                raise _explained(failure(error, str(address)), error, api, repo, revision) from error
    if not COMMIT.fullmatch(str(info.sha)):
        raise SystemFailure(f"the server names no commit: {info.sha!r}", where=address)
    if COMMIT.fullmatch(revision) and info.sha != revision:
        raise SystemFailure(f"the server answers with another commit: {info.sha}", where=address, hint=_OTHER_HUB)
    rows = ((f.rfilename, f.size, f.lfs.sha256 if f.lfs else None, f.blob_id) for f in info.siblings or ())
    try:
        return Listing(repo, str(info.sha), tuple(_entries(rows)))
    except ValueError as error:
        raise SystemFailure(f"the server lists {error}", where=address, hint=_OTHER_HUB) from error


_OTHER_HUB: Final = "check HF_ENDPOINT"


def _entries(rows: Iterable[tuple[Any, Any, Any, Any]]) -> Iterator[Entry]:
    """The files (name, size, sha256, blob) of a listing. Raises ValueError for what cannot be one.

    One that lies outside of the repo's own folder by its name is left out.
    """
    for name, size, sha256, blob in rows:
        named = all(text is None or isinstance(text, str) for text in (sha256, blob))
        if not (isinstance(name, str) and type(size) is int and 0 <= size < 1 << 62 and named):
            raise ValueError(f"{name!r} of {size!r} bytes")
        if can_be_named(name):
            yield Entry(name, size, sha256, blob)


def can_be_named(name: str) -> bool:
    """Is this a path below the folder it is given in, and one that a terminal and any disk take?"""
    return not _UNNAMEABLE.search(name) and all(part not in ("", ".", "..") for part in name.split("/"))


def _explained(known: MtpToolsError, error: Exception, api: Any, repo: str, revision: str) -> MtpToolsError:
    """For a revision that is not there: the ones that are most like it."""
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        try:
            refs = api.list_repo_refs(repo)
        except (HfHubHTTPError, client.transport_error()):
            return known
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
        near = difflib.get_close_matches(revision, names, n=3, cutoff=0.4) or names[:3]
        if near:
            return NotACheckpointError(
                f"the repo has no revision {revision}; it has {', '.join(names[:8])}",
                where=known.where,
                hint=f"{repo}@{near[0]}",
            )
    return known
