"""The only place that writes. Streams a plan to temporary siblings, checks them, and renames them into place.

Whatever goes wrong on the way (no space, Ctrl-C, a damaged input), the inputs are untouched and nothing
half-written is left. The same plan gives the same bytes: there is no clock in the output.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import xxhash

from mtptools import receipt
from mtptools.containers import gguf, safetensors
from mtptools.containers.gguf import Metadata
from mtptools.containers.gguf_values import string_value
from mtptools.errors import CorruptError, SystemFailure
from mtptools.placing import check_output, publish, put, receipt_of, staging
from mtptools.plan import Entry, OutFile, Plan
from mtptools.sequential import Sequential, writing
from mtptools.tensors import Blob, need

__all__ = ["Written", "add_verification", "write"]

CHUNK: Final = 8 << 20  # bytes copied at a time
Progress = Callable[[int], None]


@dataclass
class Written:
    """What came out. `path` is the file, the first shard, or the folder."""

    path: Path
    receipt: dict[str, Any]
    receipt_path: Path
    digests: dict[str, str] = field(default_factory=dict)


def write(
    plan: Plan,
    out: Path,
    *,
    force: bool = False,
    progress: Progress = lambda n: None,
    command: str | None = None,
) -> Written:
    """Write the plan to `out`, and beside it its receipt, which names `command`. `progress` is told of bytes done."""
    check_output(plan, out, force=force)
    with staging(out) as stage:
        try:
            written = _stream(plan, out, stage, progress, command)
            publish(plan, out, stage, force=force)
        except OSError as error:
            raise SystemFailure(
                f"cannot write: {error.strerror or error}", where=error.filename or out, hint="write to another folder"
            ) from error
    return written


def _stream(plan: Plan, out: Path, stage: Path, progress: Progress, command: str | None) -> Written:
    digests: dict[str, str] = {}
    sha256: dict[str, str] = {}
    # Headers that carry the receipt are written twice: their length is known at once, the digests inside of them
    # only after the data of every file.
    blank = receipt.inside(plan, {})
    written = [file for file in plan.files if file.linked is None]
    for file in plan.files:
        if file.linked is not None:  # first of all: where it cannot be, nobody waits to hear of it
            _link(file.linked, stage / file.name)
    for file in written:
        with writing(stage / file.name, file.nbytes) as handle:
            handle.write(_header(plan, file, blank))
            for entry in file.entries:
                _write_tensor(handle, entry, digests, sha256, progress)
                if file.container == "gguf":
                    handle.write(bytes(-handle.tell() % file.alignment))
    text = receipt.inside(plan, sha256)
    for file in written:  # never a linked one: its bytes are the input's
        if _carries(plan, file):
            with open(stage / file.name, "r+b") as again:
                again.write(_header(plan, file, text))
                again.flush()
                os.fsync(again.fileno())
    for file in plan.files:
        _check_header(stage / file.name, file)
    for side in plan.side:
        target = stage / side.name
        if side.content is not None:
            target.write_bytes(side.content)
        elif side.source is not None:
            need(side.source)
            shutil.copyfile(side.source, target)
    record = receipt.build(plan, digests, sha256, command)
    path = receipt_of(plan, out)
    (stage / path.name).write_text(_as_text(record), encoding="utf-8")
    return Written(out if plan.folder else out.parent / plan.files[0].name, record, path, digests)


def _link(source: Path, target: Path) -> None:
    """A second name for the file itself: a hub's cache holds symbolic links, and a link to one of those dangles."""
    need(source)
    try:
        os.link(source.resolve(), target)
    except OSError as error:
        raise SystemFailure(
            f"cannot be linked into the output's folder: {error.strerror or error}",
            where=source,
            hint="leave out --link, and it is copied; or write to the filesystem the input is on",
        ) from error


def _as_text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


def add_verification(written: Written, record: dict[str, Any]) -> None:
    """Put what --verify found into the receipt beside an output. Replaces the receipt whole or not at all."""
    written.receipt["verification"] = record
    put(written.receipt_path, _as_text(written.receipt))


def _carries(plan: Plan, file: OutFile) -> bool:
    """The short receipt is in the first GGUF shard, and in every safetensors file with head tensors."""
    if file.container == "gguf":
        return file is plan.files[0]
    return any(entry.head for entry in file.entries)


def _header(plan: Plan, file: OutFile, text: str) -> bytes:
    """The header of one file; `text` is the short receipt."""
    tensors = [entry.output for entry in file.entries]
    carried = text if _carries(plan, file) else None
    if isinstance(file.metadata, Metadata):
        value = None if carried is None else string_value(carried)
        metadata = file.metadata.edited({receipt.RECEIPT_KEY: value})
        return gguf.header_bytes(metadata, tensors, file.alignment)
    kept = {key: value for key, value in file.metadata.items() if not key.startswith(receipt.KEY_PREFIX)}
    return safetensors.header_bytes(kept | ({receipt.RECEIPT_KEY: carried} if carried else {}), tensors)


def _write_tensor(
    handle: Sequential, entry: Entry, digests: dict[str, str], sha256: dict[str, str], progress: Progress
) -> None:
    fast = xxhash.xxh3_128()
    slow = hashlib.sha256() if entry.head else None
    done = 0
    for data in _passed(entry) if entry.passes else entry.made():
        fast.update(data)
        if slow is not None:
            slow.update(data)
        handle.write(data)
        done += len(data)
        progress(len(data))
    if done != entry.nbytes:
        raise CorruptError(f"{entry.name}: {done} bytes came, {entry.nbytes} were planned", where=entry.source.name)
    digests[entry.name] = fast.hexdigest()
    if slow is not None:
        sha256[entry.name] = slow.hexdigest()


def _passed(entry: Entry) -> Iterator[memoryview]:
    """The source's bytes as they are; one chunk is read ahead while the one before is written."""
    chunks = list(entry.source.chunks(CHUNK))
    with ThreadPoolExecutor(1) as reader:
        ahead = reader.submit(_fill, entry, chunks[0], 0) if chunks else None
        for number in range(len(chunks)):
            if ahead is None:
                return
            view = ahead.result()
            if number + 1 < len(chunks):
                ahead = reader.submit(_fill, entry, chunks[number + 1], (number + 1) % 2)
            yield view


_BUFFERS: Final = (bytearray(CHUNK), bytearray(CHUNK))


def _fill(entry: Entry, blob: Blob, which: int) -> memoryview:
    """One chunk into one of the two buffers."""
    view, got = memoryview(_BUFFERS[which])[: blob.nbytes], 0
    need(blob.path, blob.offset, blob.nbytes)
    with open(blob.path, "rb", buffering=0) as file:
        file.seek(blob.offset)
        while got < blob.nbytes:
            n = file.readinto(view[got:])
            if not n:
                raise CorruptError(
                    f"the file ends within tensor {entry.source.name}",
                    where=blob.path,
                    hint="it changed while it was read, or is truncated: download it again",
                )
            got += n
    return view


def _check_header(path: Path, file: OutFile) -> None:
    """Read back what was written: the same tensors, types and shapes, within the file."""
    if file.container == "gguf":
        index = gguf.read_index(path)
        if index.gaps or index.alignment != file.alignment:
            raise CorruptError(f"{len(index.gaps)} tensors are not where the header says", where=path)
        read = index.tensors
    else:
        read = safetensors.read_index(path).tensors
    for entry in file.entries:
        tensor = read.get(entry.name)
        if tensor is None or (tensor.shape, tensor.codec) != (entry.source.shape, entry.codec):
            raise CorruptError(f"{entry.name} was not written as planned", where=path)
    if len(read) != len(file.entries):
        raise CorruptError(f"{len(read)} tensors were written, {len(file.entries)} planned", where=path)
