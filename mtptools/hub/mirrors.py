"""A remote model as local files: sparse ones, whose bytes arrive when they are needed.

Everything else of the project opens the path that `mirror` returns and knows nothing of networks: whoever reads asks
`mtptools.tensors.need` first.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mtptools.hub.address import Address, endpoint
from mtptools.hub.choose import Choice, choose, is_side, is_weight, shards_of
from mtptools.hub.failures import unwritable
from mtptools.hub.fetch import Progress, fetch
from mtptools.hub.partial import Partial
from mtptools.hub.repo import RECORDS, Entry, Listing, cached_by_hub, listing
from mtptools.hub.web import mirror_url
from mtptools.tensors import PARTIAL, Blob

__all__ = ["Missing", "Origin", "mirror", "missing", "prefetch", "shown", "unregistered"]

SAFETENSORS_HEAD: Final = 128 << 10  # bytes fetched of each shard at once: most headers are shorter
GGUF_HEAD: Final = 1 << 20
MAX_HEADER: Final = 100_000_000  # the safetensors library's own limit
LATER: Final = 1 << 20  # a tokenizer larger than this arrives when it is read
INDEX: Final = "model.safetensors.index.json"

# Local path of each mirror -> its address, for messages.
_SHOWN: Final[dict[str, str]] = {}


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint came from.

    address  as it was typed;  url  of the repo on its hub, or of the file
    repo, revision, commit  None for a file that is not of the hub; revision also when none was typed
    """

    address: str
    repo: str | None
    revision: str | None
    commit: str | None
    url: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Missing:
    """What is not here yet of what was asked about."""

    nbytes: int
    ranges: int
    files: int


def mirror(address: Address, *, progress: Progress | None = None) -> tuple[Path, Origin]:
    """The local path to open, and where it comes from. Fetches the files beside the weights, and headers.

    The weight files have their size and, until they are asked for, no bytes: see `mtptools.tensors.need`. Raises
    NotACheckpointError (no such repo, revision or file, or several models), InputError (gated), SystemFailure or
    CorruptError.
    """
    if address.url is not None:
        path = mirror_url(address.url, str(address), progress)
        _SHOWN[str(path)] = str(address)
        return path, Origin(str(address), None, None, None, str(address))
    found = listing(address)
    choice = choose(address, found)
    try:
        later = _place(found, choice, address, progress)
    except OSError as error:
        raise unwritable(error, found.folder) from error
    _SHOWN[str(found.folder)] = f"hf://{address.base}"
    _heads(found.folder, later, progress)
    origin = Origin(str(address), found.repo, address.revision, found.commit, f"{endpoint()}/{found.repo}")
    return (found.folder / choice.target if choice.target else found.folder), origin


def _place(found: Listing, choice: Choice, address: Address, progress: Progress | None) -> list[Partial]:
    """Put every file in its place; the ones beside the weights whole. Returns those whose bytes come later."""
    found.folder.mkdir(parents=True, exist_ok=True)
    now: list[Partial] = []
    later: list[Partial] = []
    weights = set(choice.weights)
    for entry in (*choice.side, *choice.weights):
        path = found.folder / entry.name
        if _taken_over(found, entry, path):
            continue
        file = Partial(path, found.record(entry.name), found.remote(entry, address), entry.digest)
        big = entry.size > LATER and path.name.startswith("tokenizer")
        if file.whole:
            PARTIAL.pop(path, None)
        elif entry in weights or big:
            later.append(file)
            PARTIAL[path] = file
        else:
            now.append(file)
            PARTIAL[path] = file  # should this end early, nobody takes the holes for content
    fetch([(file, 0, file.size) for file in now], progress)
    for file in now:
        PARTIAL.pop(file.path, None)
    return later


def _taken_over(found: Listing, entry: Entry, path: Path) -> bool:
    """Use the file that huggingface_hub has downloaded. A hard link where that can be: a link's target has no name."""
    whole = cached_by_hub(found, entry)
    if whole is None:
        return False
    whole = whole.resolve()
    if not (path.exists() and path.samefile(whole)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        found.record(entry.name).unlink(missing_ok=True)
        try:
            os.link(whole, path)
        except OSError:
            path.symlink_to(whole)
    PARTIAL.pop(path, None)
    return True


def _heads(folder: Path, files: list[Partial], progress: Progress | None) -> None:
    """Fetch the headers, all at once: opening then costs about one request per file."""
    tensors = [file for file in files if file.path.suffix == ".safetensors"]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # opening says what is wrong
        named = set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
        tensors = [file for file in tensors if file.path.name in named] or tensors
    ggufs = [file for file in files if file.path.suffix == ".gguf"]
    first = [(file, 0, SAFETENSORS_HEAD) for file in tensors] + [(file, 0, GGUF_HEAD) for file in ggufs]
    fetch(first, progress)
    rest = []
    for file in tensors:
        with open(file.path, "rb") as opened:
            length = struct.unpack("<Q", opened.read(8).ljust(8, b"\0"))[0]
        if SAFETENSORS_HEAD < 8 + length <= MAX_HEADER:
            rest.append((file, 0, 8 + length))
    fetch(rest, progress)


def missing(blobs: Iterable[Blob]) -> Missing:
    """What of these bytes is not here yet; nothing of an ordinary file. A byte that two blobs hold counts once."""
    from mtptools.hub.ranges import covered, joined

    ranges = {
        file: joined(run for start, nbytes in runs for run in file.absent(start, nbytes))
        for file, runs in _partial(blobs).items()
    }
    ranges = {file: runs for file, runs in ranges.items() if runs}
    return Missing(sum(map(covered, ranges.values())), sum(map(len, ranges.values())), len(ranges))


def prefetch(blobs: Iterable[Blob], progress: Progress | None = None) -> None:
    """Fetch what is missing of these bytes, several connections at once; `progress` is told of bytes that came.

    Raises SystemFailure or CorruptError; what came until then is kept.
    """
    fetch([(file, start, nbytes) for file, runs in _partial(blobs).items() for start, nbytes in runs], progress)


def _partial(blobs: Iterable[Blob]) -> dict[Partial, list[tuple[int, int]]]:
    out: dict[Partial, list[tuple[int, int]]] = {}
    for blob in blobs:
        file = PARTIAL.get(blob.path)
        if isinstance(file, Partial):
            out.setdefault(file, []).append((blob.offset, blob.nbytes))
    return out


def shown(text: str) -> str:
    """`text` with the local paths of mirrors as the addresses they stand for."""
    for path in sorted(_SHOWN, key=len, reverse=True):
        text = text.replace(path, _SHOWN[path])
    return text


def unregistered(path: Path) -> str | None:
    """The address of a cached file that is read with `path`, of which only parts are here, and which `mirror` did not
    open in this process; None when there is none.

    Its holes would pass for weights: who is given such a path by hand, or a link to it, must open the address instead.
    """
    for file in _read_with(Path(os.path.abspath(path))):  # noqa: PTH100  a link is what it is called
        if file not in PARTIAL:
            places = dict.fromkeys((file, Path(os.path.realpath(file))))
            if (address := next(filter(None, map(_mirrored, places)), None)) is not None:
                return address
    return None


def _read_with(path: Path) -> list[Path]:
    """The files that make a model of which `path` is given: its folder's, or the shards of a GGUF."""
    if path.is_dir():
        return [path / name for name in _names(path) if is_side(name) or is_weight(name)]
    if path.suffix == ".gguf":
        return [path.with_name(name) for name in shards_of(path.name, [path.name, *_names(path.parent, ".gguf")])]
    alone = path.suffix == ".safetensors"  # others beside it are not read
    names = [name for name in _names(path.parent) if is_side(name) or (is_weight(name) and not alone)]
    return [path, *(path.with_name(name) for name in names)]


def _names(folder: Path, suffix: str = "") -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(suffix)]  # noqa: PTH208  names alone
    except OSError:  # opening says what is wrong
        return []


def _mirrored(path: Path) -> str | None:
    """The address in the record of a file of the cache that is not whole."""
    for folder in path.parents:
        record = folder.parent / RECORDS / f"{path.relative_to(folder).as_posix()}.json"
        try:
            stored = json.loads(record.read_bytes())
            return None if stored["whole"] else str(stored["address"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
