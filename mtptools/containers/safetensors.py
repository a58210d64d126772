"""safetensors: an index of one file from its header alone, and headers for files to write.

Format: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data,
without gaps or overlaps (safetensors repository, format section of its README).
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from mtptools.codecs import BY_SAFETENSORS, CODECS
from mtptools.errors import CodecError, CorruptError, InputError, NotACheckpointError
from mtptools.tensors import Blob, Tensor, need

__all__ = ["INDEX_NAME", "SafetensorsIndex", "header_bytes", "load_json", "parse_json", "read_index"]

INDEX_NAME: Final = "model.safetensors.index.json"
MAX_HEADER: Final = 100_000_000  # the limit of the safetensors library itself
MAX_DIMS: Final = 8
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class SafetensorsIndex:
    """One file: tensors in data order, and the header's free-form metadata (all strings)."""

    path: Path
    metadata: dict[str, str]
    tensors: dict[str, Tensor]


def parse_json(data: bytes, where: object, *, strict: bool = False) -> Any:
    """JSON in UTF-8. Raises CorruptError naming the file.

    strict  as the safetensors library reads a header: no key stands twice, no string holds half a surrogate pair.
            Otherwise as Python reads config.json, where the last of two equal keys counts.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise CorruptError(f"{twice!r} stands twice", where=where, hint="each tensor or key may be named once")
        return out

    try:
        tree = json.loads(data.decode("utf-8"), object_pairs_hook=unique if strict else None)
        if strict and _SURROGATE.search(data):
            json.dumps(tree, ensure_ascii=False).encode()  # only whole characters have a UTF-8 form
    except (ValueError, RecursionError) as error:  # of ValueError: not UTF-8, not JSON, an integer of 5000 digits
        raise CorruptError(f"not readable as JSON ({error})", where=where, hint="download the file again") from error
    return tree


def load_json(path: Path) -> Any:
    """`parse_json` of a whole file, as Python reads config.json."""
    need(path)
    return parse_json(path.read_bytes(), path)


def read_index(path: Path) -> SafetensorsIndex:
    """The index of one safetensors file. Raises CorruptError when the header contradicts itself or the size."""
    size = path.stat().st_size
    need(path, 0, min(8, size))
    with open(path, "rb") as file:
        head = file.read(8)
        n = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if len(head) < 8 or n > MAX_HEADER:
            raise NotACheckpointError("not a safetensors file", where=path, hint="give a .gguf or .safetensors file")
        if 8 + n > size:
            raise CorruptError(
                f"header of {n} bytes in a file of {size}", where=path, hint="the file is truncated: download it again"
            )
        need(path, 8, n)
        header = parse_json(file.read(n), path, strict=True)
    if not isinstance(header, dict):
        raise CorruptError("the header is not a JSON object", where=path, hint="download the file again")
    metadata = header.pop("__metadata__", None) or {}
    if not (isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())):
        raise CorruptError("__metadata__ is not a map of strings", where=path)
    tensors = [_tensor(path, name, entry, 8 + n, size) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.blobs[0].offset, tensor.blobs[0].nbytes))
    _check_cover(path, tensors, 8 + n, size)
    return SafetensorsIndex(path, metadata, {tensor.name: tensor for tensor in tensors})


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _tensor(path: Path, name: str, entry: Any, data_start: int, size: int) -> Tensor:
    def corrupt(what: str) -> CorruptError:
        return CorruptError(f"tensor {name}: {what}", where=path, hint="the file is damaged: download it again")

    if "\n" in name:  # it would pass for several lines of a listing
        raise CorruptError(f"a tensor's name holds a line break: {name!r}", where=path, hint="download the file again")
    if not isinstance(entry, dict):
        raise corrupt("its entry is not an object")
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    if not (isinstance(shape, list) and len(shape) <= MAX_DIMS and all(map(_whole, shape))):
        raise corrupt(f"shape {shape!r}")
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_whole, offsets))):
        raise corrupt(f"data_offsets {offsets!r}")
    codec = BY_SAFETENSORS.get(dtype) if isinstance(dtype, str) else None
    if codec is None:
        raise CodecError(f"tensor {name} has dtype {dtype!r}, unknown to this version", where=path)
    begin, end = offsets
    if end < begin or data_start + end > size:
        raise corrupt(f"ends at byte {data_start + end}, the file has {size}")
    if prod(shape) * codec.block_bytes != end - begin:
        raise corrupt(f"{dtype} {shape} needs {prod(shape) * codec.block_bytes} bytes, {end - begin} are given")
    return Tensor(name, tuple(shape), codec.name, (Blob(path, data_start + begin, end - begin),))


def _check_cover(path: Path, tensors: Sequence[Tensor], data_start: int, size: int) -> None:
    at, before = data_start, "the header"
    for tensor in tensors:
        blob = tensor.blobs[0]
        if blob.offset != at:
            word = "overlaps" if blob.offset < at else "leaves a gap after"
            raise CorruptError(f"tensor {tensor.name} {word} {before}", where=path, hint="download the file again")
        at, before = blob.offset + blob.nbytes, tensor.name
    if at != size:
        raise CorruptError(
            f"{size - at} bytes behind {before} belong to no tensor", where=path, hint="download it again"
        )


def header_bytes(metadata: Mapping[str, str], tensors: Sequence[Tensor]) -> bytes:
    """The header for these tensors in this order; data starts at a multiple of 8.

    Raises InputError on a duplicate name and CodecError for a type the format has no name for.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        dtype = CODECS[tensor.codec].safetensors
        if dtype is None:
            raise CodecError(
                f"safetensors has no dtype for {tensor.codec}", where=tensor.name, hint="graft with --head-type BF16"
            )
        if tensor.name in header:
            raise InputError(f"tensor {tensor.name} would stand twice")
        header[tensor.name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
