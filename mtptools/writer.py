"""The only place that writes. Streams a plan to temporary siblings, checks them, and renames them into place.

Whatever goes wrong on the way (no space, Ctrl-C, a damaged input), the inputs are untouched and nothing
half-written is left. The same plan gives the same bytes: there is no clock in the output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import xxhash

from mtptools import receipt
from mtptools.codecs import decode, encode
from mtptools.containers import gguf, safetensors
from mtptools.containers.gguf import Metadata
from mtptools.containers.gguf_values import string_value
from mtptools.conventions import convert_values
from mtptools.errors import CorruptError, OutputExistsError, SystemFailure, UsageError
from mtptools.plan import Entry, OutFile, Plan, human_bytes

__all__ = ["Written", "add_verification", "check_output", "write"]

CHUNK: Final = 8 << 20  # bytes copied at a time
ROW_VALUES: Final = 1 << 20  # values decoded at a time
Progress = Callable[[int], None]


@dataclass
class Written:
    """What came out. `path` is the file, the first shard, or the folder."""

    path: Path
    receipt: dict[str, Any]
    receipt_path: Path
    digests: dict[str, str] = field(default_factory=dict)


def check_output(plan: Plan, out: Path, *, force: bool) -> None:
    """Refuse before any work is done: output equal to an input, already there, or no room for it.

    Raises UsageError, OutputExistsError or SystemFailure.
    """
    targets = [out] if plan.folder else [out.parent / file.name for file in plan.files]
    used = {file.path.resolve() for item in plan.inputs for file in item.checkpoint.files}
    used |= {item.checkpoint.path.resolve() for item in plan.inputs}
    for target in targets:
        real = target.resolve()
        same = [path for path in used if path.exists() and real.exists() and path.samefile(real)]
        if real in used or same or (plan.folder and any(real in path.parents for path in used)):
            raise UsageError("the output is one of the inputs", where=target, hint="give another path with -o")
        if target.exists() and not force:
            raise OutputExistsError("the output exists", where=target, hint="add --force to replace it")
        if target.is_dir() != plan.folder and target.exists():
            raise UsageError("the output exists and is of another kind", where=target, hint="give another path")
        if target.is_dir() and any(target.iterdir()) and not receipt.receipt_path(target, True).is_file():
            raise UsageError(
                "the folder was not made by mtptools (no receipt in it): it is not replaced, even with --force",
                where=target,
                hint="remove it yourself, or give another path",
            )
    parent = out.parent
    if not parent.is_dir():
        raise SystemFailure("no such folder", where=parent, hint=f"mkdir -p {parent}")
    side = sum(s.source.stat().st_size for s in plan.side if s.source is not None)
    need, free = plan.nbytes + side, shutil.disk_usage(parent).free
    if need > free:
        raise SystemFailure(
            f"the output needs {human_bytes(need)}, {human_bytes(free)} are free", where=parent, hint="free some space"
        )


def write(plan: Plan, out: Path, *, force: bool = False, progress: Progress = lambda n: None) -> Written:
    """Write the plan to `out` and its receipt beside it. `progress` is called with bytes done."""
    check_output(plan, out, force=force)
    with _staging(out) as stage:
        try:
            written = _stream(plan, out, stage, progress)
            _publish(plan, out, stage)
        except OSError as error:
            raise SystemFailure(f"cannot write: {error.strerror or error}", where=error.filename or out) from error
    return written


@contextlib.contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A temporary folder beside the output, removed whatever happens."""
    stage = out.parent / f".{out.name}.mtptools-{os.getpid()}"
    try:
        stage.mkdir()
    except OSError as error:
        raise SystemFailure(f"cannot write: {error.strerror or error}", where=out.parent) from error
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _stream(plan: Plan, out: Path, stage: Path, progress: Progress) -> Written:
    digests: dict[str, str] = {}
    sha256: dict[str, str] = {}
    for file in plan.files:
        # The header is written twice: its length is known at once, the digests inside it only after the data.
        with open(stage / file.name, "xb") as handle:
            handle.write(_header(plan, file, {}))
            for entry in file.entries:
                _write_tensor(handle, entry, digests, sha256, progress)
                if file.container == "gguf":
                    handle.write(bytes(-handle.tell() % file.alignment))
            handle.seek(0)
            handle.write(_header(plan, file, sha256))
            handle.flush()
            os.fsync(handle.fileno())
        _check_header(stage / file.name, file)
    for side in plan.side:
        target = stage / side.name
        if side.content is not None:
            target.write_bytes(side.content)
        elif side.source is not None:
            shutil.copyfile(side.source, target)
    record = receipt.build(plan, digests, sha256)
    path = receipt.receipt_path(out, plan.folder)
    (stage / path.name).write_text(_as_text(record), encoding="utf-8")
    return Written(out if plan.folder else out.parent / plan.files[0].name, record, path, digests)


def _as_text(record: dict[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


def add_verification(written: Written, record: dict[str, Any]) -> None:
    """Put what --verify found into the receipt beside an output. Replaces the receipt whole or not at all."""
    written.receipt["verification"] = record
    fresh = written.receipt_path.with_name(f".{written.receipt_path.name}.{os.getpid()}")
    try:
        fresh.write_text(_as_text(written.receipt), encoding="utf-8")
        fresh.replace(written.receipt_path)
    except OSError as error:
        raise SystemFailure(f"cannot write: {error.strerror or error}", where=written.receipt_path) from error
    finally:
        fresh.unlink(missing_ok=True)


def _header(plan: Plan, file: OutFile, sha256: dict[str, str]) -> bytes:
    text = receipt.inside(plan, sha256)
    tensors = [entry.output for entry in file.entries]
    if isinstance(file.metadata, Metadata):
        first = file is plan.files[0]
        metadata = file.metadata.edited({receipt.RECEIPT_KEY: string_value(text)} if first else {})
        return gguf.header_bytes(metadata, tensors, file.alignment)
    kept = {key: value for key, value in file.metadata.items() if not key.startswith(receipt.KEY_PREFIX)}
    head = {receipt.RECEIPT_KEY: text} if any(entry.head for entry in file.entries) else {}
    return safetensors.header_bytes({**kept, **head}, tensors)


def _write_tensor(
    handle: IO[bytes], entry: Entry, digests: dict[str, str], sha256: dict[str, str], progress: Progress
) -> None:
    fast = xxhash.xxh3_128()
    slow = hashlib.sha256() if entry.head else None
    done = 0
    for data in _passed(entry) if entry.passes else _converted(entry):
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


_BUFFER = bytearray(CHUNK)


def _passed(entry: Entry) -> Iterator[memoryview]:
    """The source's bytes as they are, through one reused buffer."""
    view = memoryview(_BUFFER)
    for blob in entry.source.blobs:
        with open(blob.path, "rb", buffering=0) as file:
            file.seek(blob.offset)
            left = blob.nbytes
            while left:
                n = file.readinto(view[: min(left, CHUNK)])
                if not n:
                    raise CorruptError(
                        f"the file ends within tensor {entry.source.name}",
                        where=blob.path,
                        hint="it changed while it was read, or is truncated: download it again",
                    )
                left -= n
                yield view[:n]


def _converted(entry: Entry) -> Iterator[bytes]:
    """Rows decoded, converted and encoded a chunk at a time."""
    source = entry.source
    columns = source.shape[-1] if source.shape else 1
    step = max(1, ROW_VALUES // max(columns, 1))
    for start in range(0, source.n_rows, step):
        values = decode(source, start, min(start + step, source.n_rows))
        if entry.values is not None:
            values = convert_values(values, *entry.values)
        yield encode(values, entry.codec)


def _check_header(path: Path, file: OutFile) -> None:
    """Read back what was written: the same tensors, types and shapes, within the file."""
    read = gguf.read_index(path).tensors if file.container == "gguf" else safetensors.read_index(path).tensors
    for entry in file.entries:
        tensor = read.get(entry.name)
        if tensor is None or (tensor.shape, tensor.codec) != (entry.source.shape, entry.codec):
            raise CorruptError(f"{entry.name} was not written as planned", where=path)
    if len(read) != len(file.entries):
        raise CorruptError(f"{len(read)} tensors were written, {len(file.entries)} planned", where=path)


def _publish(plan: Plan, out: Path, stage: Path) -> None:
    if plan.folder:
        retired = out.with_name(f".{out.name}.mtptools-old-{os.getpid()}")
        if out.exists():
            out.rename(retired)
        try:
            stage.rename(out)
        except BaseException:
            if retired.exists():
                retired.rename(out)
            raise
        shutil.rmtree(retired, ignore_errors=True)
        return
    # The first shard goes last: until it is there, nothing opens as a checkpoint.
    names = [file.name for file in plan.files[1:]] + [receipt.receipt_path(out, False).name, plan.files[0].name]
    moved: list[Path] = []
    try:
        for name in names:
            target = out.parent / name
            fresh = not target.exists()
            os.replace(stage / name, target)
            if fresh:
                moved.append(target)
    except BaseException:
        for target in moved:
            target.unlink(missing_ok=True)
        raise
