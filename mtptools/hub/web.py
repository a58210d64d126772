"""One file of an ordinary web server, as a sparse local file."""

from __future__ import annotations

import hashlib
import re
import threading
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from mtptools.errors import NotACheckpointError, SystemFailure
from mtptools.hub import client
from mtptools.hub.choose import SPLIT
from mtptools.hub.failures import failure, raise_for
from mtptools.hub.fetch import Progress, fetch
from mtptools.hub.partial import Partial
from mtptools.hub.remote import BUSY, Busy, Remote, bare_etag, busy
from mtptools.hub.repo import RECORDS, cache_root
from mtptools.hub.transfer import Patience
from mtptools.tensors import PARTIAL

__all__ = ["mirror_url"]

HEAD: Final = 1 << 20  # bytes fetched at once: the header of a GGUF, or most of it
LONGEST: Final = 1 << 62  # bytes: more is no length of a file
SMALL: Final = 64 << 20  # a file up to this size is fetched whole where byte ranges are not served


def mirror_url(url: str, address: str, progress: Progress | None) -> Path:
    """The local file of a URL; the other shards of a split GGUF stand beside it."""
    parts = urlsplit(url)
    folder, _, quoted = parts.path.rpartition("/")
    name = unquote(quoted)
    if name != Path(name).name or name.startswith("."):
        raise NotACheckpointError("a web address must name a file", where=address)
    host = re.sub(r"[^\w.\-]", "_", parts.netloc.rpartition("@")[2])
    # Of the address without its query, which may be a signature: what has arrived is found again under a new one.
    where = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], folder, "", ""))
    root = cache_root() / "web" / host / hashlib.sha256(where.encode()).hexdigest()[:16]
    files = []
    for shard in _shards(name):
        path = parts.path if shard == name else f"{folder}/{shard}"
        one = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        shown = address.rpartition("/")[0] + f"/{shard}"
        file = Partial(root / "files" / shard, root / RECORDS / f"{shard}.json", _probe(one, shown))
        PARTIAL[file.path] = file  # also a whole one: another process may find that the server has a new version
        files.append(file)
    fetch([(file, 0, HEAD) for file in files], progress)
    return root / "files" / name


def _shards(name: str) -> list[str]:
    match = SPLIT.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    if not 0 < count <= 1000:
        raise NotACheckpointError(f"a GGUF of {count} shards", where=name)
    return [f"{match['stem']}-{number:05d}-of-{match['count']}.gguf" for number in range(1, count + 1)]


def _probe(url: str, address: str) -> Remote:
    """Ask for one byte: the answer names the size, what identifies the content, and whether ranges are served."""
    asked = Remote(url, 1, None, address, hub=False)
    patience = Patience(threading.Event())
    cut = client.transport_error()
    while True:
        try:
            with asked.answer(0, 1) as response:
                if response.status_code in BUSY:
                    raise busy(response)
                return _described(response, url, address)
        except (Busy, cut) as error:
            patience.wait(error, address)
        except ConnectionError as error:  # offline mode
            raise failure(error, address) from error


def _described(response: Any, url: str, address: str) -> Remote:
    if response.status_code >= 400:
        raise_for(response, address)
    if response.status_code not in (200, 206):
        raise SystemFailure(f"the server answers {response.status_code}", where=address, hint="check the address")
    ranged = response.status_code == 206
    stated = response.headers.get("content-range", "").rpartition("/")[2] if ranged else None
    size = stated if ranged else response.headers.get("content-length")
    if not (size and size.isdecimal() and int(size) < LONGEST):
        raise SystemFailure("the server does not say how long the file is", where=address, hint=f"curl -LO {address}")
    name = bare_etag(response.headers.get("etag")) or response.headers.get("last-modified")
    if not ranged and int(size) > SMALL:
        raise SystemFailure(
            f"the server ignores byte ranges: the whole file of {int(size) / 1e9:.3g} GB would be needed",
            where=address,
            hint=f"curl -LO {address}, then give the local path",
        )
    return Remote(url, int(size), name, address, hub=False, ranged=ranged)
