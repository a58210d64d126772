"""GGUF v3: an index of one file from its header alone, and headers for files to write.

Only the header is read, strings of long arrays are skipped, not decoded: a file with a 250k-token vocabulary
opens in a tenth of a second. Every count and offset is checked before anything is allocated or sought.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from mtptools.codecs import BY_GGML_ID, CODECS
from mtptools.containers.gguf_values import ARRAY, SCALARS, STRING, GgufValue, scalar_value
from mtptools.errors import CodecError, CorruptError, NotACheckpointError
from mtptools.tensors import PARTIAL, Blob, Tensor, need

__all__ = ["MAGIC", "GgufIndex", "Metadata", "header_bytes", "padded", "read_index", "split_keys"]

MAGIC: Final = b"GGUF"
VERSION: Final = 3
MAX_DIMS: Final = 4
MAX_NAME: Final = 4096
EAGER_BYTES: Final = 4096  # values up to this size are kept in memory, longer ones stay in the file
MAX_FETCHED: Final = 1 << 30  # bytes of a header that is fetched: a damaged one may claim anything
STEP: Final = 1 << 20  # of a header that is fetched: at least so much at a time, then as much again as is there
_MIN_KV: Final = 8 + 1 + 4 + 1
_MIN_INFO: Final = 8 + 1 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Metadata(Mapping[str, Any]):
    """The key-value part of a header, in file order. `[key]` decodes; `stored[key]` keeps the bytes."""

    def __init__(self, stored: Mapping[str, GgufValue] | None = None) -> None:
        self.stored: dict[str, GgufValue] = dict(stored or {})

    def __getitem__(self, key: str) -> Any:
        return self.stored[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)

    def edited(self, changes: Mapping[str, GgufValue | None]) -> Metadata:
        """A copy in which values are replaced in place, new keys appended, and keys given None removed."""
        out = {key: changes.get(key, value) for key, value in self.stored.items()}
        out.update({key: value for key, value in changes.items() if key not in out})
        return Metadata({key: value for key, value in out.items() if value is not None})


@dataclass(frozen=True)
class GgufIndex:
    """One GGUF file: metadata in order, tensors in order, and where its data starts."""

    path: Path
    metadata: Metadata
    tensors: dict[str, Tensor]
    alignment: int
    data_start: int
    gaps: tuple[str, ...] = ()  # tensors that do not stand at the running padded sum: llama.cpp refuses these


def padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


class _Cursor:
    """A bounds-checked position in the mapped header."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.size = data, path, 4, len(data)
        self.here = 0 if path in PARTIAL else self.size  # bytes from the start that can be read

    def corrupt(self, what: str) -> CorruptError:
        return CorruptError(what, where=self.path, hint="the file is truncated or damaged: download it again")

    def need(self, n: int, what: str) -> None:
        if n > self.size - self.at:
            raise self.corrupt(f"{what} at byte {self.at} needs {n} bytes, {self.size - self.at} are left")
        self.reach(self.at + n)

    def reach(self, end: int) -> int:
        """See to it that bytes before `end` can be read, and return how many can."""
        if self.here < end <= self.size:
            if end > MAX_FETCHED:
                raise self.corrupt(f"a header of more than {MAX_FETCHED} bytes")
            self.here = min(max(end, self.here + max(self.here, STEP)), self.size)
            need(self.path, 0, self.here)
        return self.here

    def u32(self, what: str) -> int:
        self.need(4, what)
        value: int = _U32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def u64(self, what: str) -> int:
        self.need(8, what)
        value: int = _U64.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def text(self, what: str, longest: int) -> str:
        n = self.u64(f"length of {what}")
        if n > longest:
            raise self.corrupt(f"{what} claims to be {n} bytes long")
        self.need(n, what)
        start, self.at = self.at, self.at + n
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} at byte {start} is not UTF-8") from error

    def skip_strings(self, count: int, what: str) -> None:
        data, at, size, here, unpack = self.data, self.at, self.size, self.here, _U64.unpack_from
        try:
            for _ in range(count):
                if at + 8 > here:
                    here = self.reach(at + 8)
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            at = size + 1
        if at > size:
            raise self.corrupt(f"strings of {what} run past the end of the file")
        self.at = at
        self.reach(at)


def read_index(path: Path) -> GgufIndex:
    """The index of one GGUF v3 file.

    Raises NotACheckpointError for another format, version or byte order, and CorruptError when the header
    contradicts itself or the file's size.
    """
    need(path, 0, min(8, path.stat().st_size))
    with open(path, "rb") as file:
        head = file.read(8)
        if len(head) < 8 or head[:4] != MAGIC:
            raise NotACheckpointError(
                "not a GGUF file (no GGUF magic)", where=path, hint="give a .gguf or .safetensors file, or a folder"
            )
        _check_version(_U32.unpack_from(head, 4)[0], path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data, path)
            cursor.at = 8
            return _parse(cursor)


def _check_version(version: int, path: Path) -> None:
    if version == VERSION:
        return
    if version == VERSION << 24:
        raise NotACheckpointError(
            "big-endian GGUF", where=path, hint=f"convert a copy first: gguf-convert-endian {path.name} little"
        )
    raise NotACheckpointError(
        f"GGUF version {version}, only version {VERSION} is read",
        where=path,
        hint="rewrite it with a current llama.cpp: llama-quantize in.gguf out.gguf COPY",
    )


def _parse(cursor: _Cursor) -> GgufIndex:
    n_tensors, n_kv = cursor.u64("tensor count"), cursor.u64("metadata count")
    if n_tensors > cursor.size // _MIN_INFO or n_kv > cursor.size // _MIN_KV:
        raise cursor.corrupt(f"claims {n_tensors} tensors and {n_kv} metadata keys in {cursor.size} bytes")
    stored: dict[str, GgufValue] = {}
    for _ in range(n_kv):
        key = cursor.text("a metadata key", MAX_NAME)
        if key in stored:
            raise cursor.corrupt(f"metadata key {key} stands twice")
        stored[key] = _value(cursor, key)
    metadata = Metadata(stored)
    alignment = _alignment(cursor, metadata)
    infos: dict[str, tuple[tuple[int, ...], str, int]] = {}
    for _ in range(n_tensors):
        name = cursor.text("a tensor name", MAX_NAME)
        if "\n" in name:  # it would pass for several lines of a listing
            raise cursor.corrupt(f"a tensor's name holds a line break: {name!r}")
        if name in infos:
            raise cursor.corrupt(f"tensor {name} stands twice")
        infos[name] = _info(cursor, name)
    data_start = padded(cursor.at, alignment)
    tensors, gaps = _placed(cursor, infos, data_start, alignment)
    return GgufIndex(cursor.path, metadata, tensors, alignment, data_start, gaps)


def _value(cursor: _Cursor, key: str) -> GgufValue:
    kind, start = cursor.u32(f"type of {key}"), cursor.at
    item, count = None, 1
    if kind in SCALARS:
        size = struct.calcsize(SCALARS[kind][1])
        cursor.need(size, key)
        cursor.at += size
    elif kind == STRING:
        size = cursor.u64(f"length of {key}")
        cursor.need(size, key)
        cursor.at += size
    elif kind == ARRAY:
        item, count = cursor.u32(f"item type of {key}"), cursor.u64(f"length of {key}")
        if item == STRING:
            cursor.need(8 * count, key)
            cursor.skip_strings(count, key)
        elif item in SCALARS:
            size = struct.calcsize(SCALARS[item][1]) * count
            cursor.need(size, key)
            cursor.at += size
        else:
            raise cursor.corrupt(f"metadata {key} is an array of unknown type {item}")
    else:
        raise cursor.corrupt(f"metadata {key} has unknown type {kind}")
    nbytes = cursor.at - start
    if nbytes > EAGER_BYTES:
        return GgufValue(kind, item, count, Blob(cursor.path, start, nbytes))
    return GgufValue(kind, item, count, cursor.data[start : cursor.at])


def _alignment(cursor: _Cursor, metadata: Metadata) -> int:
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or value & (value - 1) or value > 1 << 20:
        raise cursor.corrupt(f"general.alignment is {value!r}, not a power of two")
    return value


def _info(cursor: _Cursor, name: str) -> tuple[tuple[int, ...], str, int]:
    n_dims = cursor.u32(f"dimensions of {name}")
    if n_dims > MAX_DIMS:
        raise cursor.corrupt(f"tensor {name} claims {n_dims} dimensions")
    ne = tuple(cursor.u64(f"shape of {name}") for _ in range(n_dims))
    kind, offset = cursor.u32(f"type of {name}"), cursor.u64(f"offset of {name}")
    codec = BY_GGML_ID.get(kind)
    if codec is None:
        raise CodecError(
            f"tensor {name} has type number {kind}, unknown to this version",
            where=cursor.path,
            hint="a fork of llama.cpp may have written it; requantize with a stock type",
        )
    return tuple(reversed(ne)), codec.name, offset


def _placed(
    cursor: _Cursor, infos: Mapping[str, tuple[tuple[int, ...], str, int]], data_start: int, alignment: int
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    tensors: dict[str, Tensor] = {}
    gaps: list[str] = []
    spans: list[tuple[int, int, str]] = []
    expected = 0
    for name, (shape, codec, offset) in infos.items():
        nbytes = _nbytes(cursor, name, shape, codec)
        if offset % alignment:
            raise cursor.corrupt(f"tensor {name} starts at {offset}, not a multiple of the alignment {alignment}")
        if data_start + offset + nbytes > cursor.size:
            raise cursor.corrupt(
                f"tensor {name} ends at byte {data_start + offset + nbytes}, the file has {cursor.size}"
            )
        if offset != expected:
            gaps.append(name)
        expected = padded(offset + nbytes, alignment)
        spans.append((offset, offset + nbytes, name))
        tensors[name] = Tensor(name, shape, codec, (Blob(cursor.path, data_start + offset, nbytes),))
    spans.sort()
    for (_, end, first), (begin, _, second) in pairwise(spans):
        if begin < end:
            raise cursor.corrupt(f"tensors {first} and {second} overlap")
    return tensors, tuple(gaps)


def _nbytes(cursor: _Cursor, name: str, shape: tuple[int, ...], codec: str) -> int:
    n_values = 1
    for size in shape:
        n_values *= size
    if n_values >= 1 << 62:
        raise cursor.corrupt(f"tensor {name} claims shape {list(shape)}")
    kind, last = CODECS[codec], shape[-1] if shape else 1
    if last % kind.block_values:
        raise cursor.corrupt(f"tensor {name} {list(shape)} does not fill whole {codec} blocks")
    return n_values // kind.block_values * kind.block_bytes


def header_bytes(metadata: Metadata, tensors: Sequence[Tensor], alignment: int) -> bytes:
    """The whole header for these tensors in this order, padded to where the data starts."""
    infos = bytearray()
    offset = 0
    for tensor in tensors:
        name, ggml_id = tensor.name.encode(), CODECS[tensor.codec].ggml_id
        if ggml_id is None:
            raise CodecError(f"GGUF has no type for {tensor.codec}", where=tensor.name, hint="choose --head-type")
        infos += _U64.pack(len(name)) + name + _U32.pack(len(tensor.shape))
        infos += b"".join(_U64.pack(size) for size in reversed(tensor.shape)) + struct.pack("<IQ", ggml_id, offset)
        offset += padded(tensor.nbytes, alignment)
    parts = [MAGIC, struct.pack("<IQQ", VERSION, len(tensors), len(metadata))]
    for key, value in metadata.stored.items():
        name = key.encode()
        parts += [_U64.pack(len(name)), name, value.encoded()]
    head = b"".join(parts) + bytes(infos)
    return head + bytes(padded(len(head), alignment) - len(head))


def split_keys(number: int, count: int, n_tensors: int) -> dict[str, GgufValue]:
    """The three keys of a shard: 0-based number, shard count, tensors over all shards."""
    return {
        "split.no": scalar_value("u16", number),
        "split.count": scalar_value("u16", count),
        "split.tensors.count": scalar_value("i32", n_tensors),
    }
