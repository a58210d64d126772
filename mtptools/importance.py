"""The importance matrix: mean squared activations of each matrix's input columns, which weight its quantization.

Files are llama.cpp's: GGUF with two tensors an entry (`NAME.in_sum2`, `NAME.counts`), and the older `.dat`. Entries go
by GGUF tensor name (`blk.40.attn_q.weight`). Sources: llama.cpp's `tools/imatrix/imatrix.cpp` (what is counted, how
files are joined), `common/imatrix-loader.cpp` (both formats) and `tools/quantize/quantize.cpp` (what a quantizer sees).
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.containers import gguf
from mtptools.containers.gguf import GgufIndex, Metadata
from mtptools.containers.gguf_values import array_value, scalar_value, string_value
from mtptools.errors import CorruptError, IncompatibleError, InputError
from mtptools.tensors import NOWHERE, Blob, Tensor

__all__ = ["Entry", "Importance", "file_parts", "merged", "read_importance"]

SUMS: Final = ".in_sum2"
COUNTS: Final = ".counts"
KEYS: Final = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
ALIGNMENT: Final = 32
LONGEST_NAME: Final = 4096
_HINT: Final = "give a file that mtptools imatrix or llama-imatrix wrote"
_AGAIN: Final = "the file is truncated or damaged: copy it or make it again"
_I32: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What one tensor's inputs added up to.

    sums    [n, columns] float32: squares, added over the rows that came
    counts  [n] int64: how many came. n is the number of experts of a stack, else 1: a stack that every row passes (one
            matrix a head) has one count, and its matrices' columns stand side by side
    """

    sums: NDArray[np.float32]
    counts: NDArray[np.int64]

    @property
    def unused(self) -> int:
        """Experts to which no row came."""
        return int((self.counts == 0).sum())

    @property
    def mean(self) -> NDArray[np.float32]:
        """[n, columns] float32: sums over counts, and 1 where nothing came."""
        counts = self.counts.astype(np.float32)[:, None]
        return np.where(counts > 0, self.sums / np.maximum(counts, np.float32(1)), np.float32(1))

    def spread(self, n: int) -> Entry:
        """With one count as n: of an old file, which kept one for all experts."""
        return Entry(self.sums.reshape(n, -1), np.repeat(self.counts, n)) if len(self.counts) == 1 else self

    def pooled(self, columns: int) -> Entry:
        """Matrices that stand one under the other in one tensor, as that tensor: one row of `columns` for all."""
        sums = self.sums.reshape(-1, columns)
        return Entry(sums.sum(0, keepdims=True), self.counts[:1] * len(sums))

    def scaled(self, by: int) -> Entry:
        return Entry(self.sums * np.float32(by), self.counts * by)


@dataclass(frozen=True, slots=True, eq=False)
class Importance:
    """entries     by GGUF tensor name
    datasets    what it was measured on
    chunks      pieces of text that were read;  chunk_size  tokens of each, 0 of an old file, which counts in chunks
    where       the file, for errors
    sha256      of the file, "" of what was not read from one
    """

    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0
    where: object = field(default=None)
    sha256: str = ""

    @property
    def label(self) -> str:
        """What it is called."""
        return self.where.name if isinstance(self.where, Path) else "an importance matrix"

    def importance_of(self, name: str, columns: int, n_matrices: int = 1) -> NDArray[np.float32] | None:
        """The weights of a tensor's columns: float32 [n_matrices, columns], to the bit those llama-quantize uses.

        None when the tensor was not measured. Experts to which no row came weigh 1 everywhere. Raises
        IncompatibleError when what was measured has another size: it is another model's.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        if entry.sums.size != columns * n_matrices:
            found = f"{name}: {_size(entry)} in the importance matrix, {n_matrices} x {columns} in the model"
            raise IncompatibleError(
                f"the importance matrix is another model's: {found}",
                [found],
                where=self.where,
                hint="measure this model's: mtptools imatrix MODEL --text FILE -o OUT.gguf",
            )
        return entry.mean.reshape(n_matrices, columns)


def _size(entry: Entry) -> str:
    return " x ".join(map(str, entry.sums.shape))


def merged(one: Importance, other: Importance) -> Importance:
    """Both as one: entries of either, and what both measured added.

    An old file counts in chunks; it is scaled to the other's chunk size. Raises IncompatibleError where the same name
    has other sizes.
    """
    size = one.chunk_size or other.chunk_size
    parts = [part if part.chunk_size or not size else _in_tokens(part, size) for part in (one, other)]
    entries = dict(parts[0].entries)
    for name, entry in parts[1].entries.items():
        entries[name] = _added(entries[name], entry, name, other.where) if name in entries else entry
    most = max((int(entry.counts.max()) for entry in entries.values()), default=0)
    return Importance(entries, one.datasets + other.datasets, most // (size or 1), size, one.where)


def _in_tokens(old: Importance, size: int) -> Importance:
    scaled = {name: entry.scaled(size) for name, entry in old.entries.items()}
    return Importance(scaled, old.datasets, old.chunks, size, old.where)


def _added(one: Entry, other: Entry, name: str, where: object) -> Entry:
    n = max(len(one.counts), len(other.counts))
    fits = one.sums.size == other.sums.size and {len(one.counts), len(other.counts)} <= {1, n}
    if not fits:
        found = f"{name}: {_size(one)} and {_size(other)}"
        raise IncompatibleError(
            f"the importance matrices are of different models: {found}", [found], where=where, hint="merge one model's"
        )
    one, other = one.spread(n), other.spread(n)
    return Entry(one.sums + other.sums, one.counts + other.counts)


def read_importance(path: Path) -> Importance:
    """The importance matrix of a GGUF that llama-imatrix or mtptools wrote, or of an older `.dat`.

    Raises InputError (no such file, not an importance matrix) and CorruptError (truncated; sums that are negative or
    not finite: which entry, how many).
    """
    try:
        with open(path, "rb") as file:
            start = file.read(4)
            if start == gguf.MAGIC:
                found = _from_gguf(gguf.read_index(path))
            elif len(start) < 4:
                raise _not_one(path, "too short")
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    found = _from_dat(data, path)
    except OSError as error:
        raise InputError(
            f"cannot read the importance matrix: {error.strerror or error}", where=path, hint=_HINT
        ) from error
    for name, entry in found.entries.items():
        _check(name, entry, path)
    return replace(found, sha256=_digest(path))


def _digest(path: Path) -> str:
    state = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            state.update(data)
    return state.hexdigest()


def _not_one(path: Path, why: str) -> InputError:
    return InputError(f"not an importance matrix ({why})", where=path, hint=_HINT)


def _check(name: str, entry: Entry, path: Path) -> None:
    bad = {
        "not finite": int((~np.isfinite(entry.sums)).sum()),
        "negative": int((entry.sums < 0).sum()),
        "counted less than no times": int((entry.counts < 0).sum()),
    }
    wrong = ", ".join(f"{count} {what}" for what, count in bad.items() if count)
    if wrong:
        raise CorruptError(
            f"{name}: of {entry.sums.size} sums {wrong}", where=path, hint="measure it again: mtptools imatrix"
        )


def _from_gguf(index: GgufIndex) -> Importance:
    path = index.path
    stems: dict[str, set[str]] = {}
    for name in index.tensors:
        for end in (SUMS, COUNTS):
            if name.endswith(end):
                stems.setdefault(name.removesuffix(end), set()).add(end)
    if not stems:
        raise _not_one(path, f"a GGUF without {SUMS} tensors")
    missing = [key for key in KEYS if key not in index.metadata]
    if missing:
        raise CorruptError(f"the metadata has no {missing[0]}", where=path, hint=_HINT)
    entries = {}
    for stem, ends in stems.items():
        if len(ends) < 2:
            lost = next(end for end in (SUMS, COUNTS) if end not in ends)
            raise CorruptError(f"{stem} has no {lost}", where=path, hint=_AGAIN)
        entries[stem] = _entry(stem, _floats(index, stem + SUMS), _floats(index, stem + COUNTS), path)
    datasets, chunks, size = (index.metadata[key] for key in KEYS)
    right = isinstance(datasets, list) and all(isinstance(number, int) for number in (chunks, size))
    if not right:
        raise CorruptError("the metadata of the importance matrix has other types than it should", where=path)
    return Importance(entries, tuple(map(str, datasets)), chunks, size, path)


def _floats(index: GgufIndex, name: str) -> NDArray[np.float32]:
    tensor = index.tensors[name]
    if tensor.codec != "F32":
        raise CorruptError(f"{name} is {tensor.codec}, not F32", where=index.path, hint=_HINT)
    return np.frombuffer(tensor.read(), "<f4").astype(np.float32, copy=False)


def _entry(name: str, sums: NDArray[np.float32], counts: NDArray[np.float32], path: Path) -> Entry:
    n = len(counts)
    if not n or not sums.size or sums.size % n:
        raise CorruptError(f"{name}: {sums.size} sums and {n} counts", where=path, hint=_AGAIN)
    if not np.isfinite(counts).all() or np.abs(counts).max() >= 2**63:
        raise CorruptError(f"{name}: a count is no number", where=path, hint=_AGAIN)
    return Entry(sums.reshape(n, -1), np.rint(counts).astype(np.int64))


def _from_dat(data: mmap.mmap, path: Path) -> Importance:
    """Count of entries; of each name, chunks, values, sums scaled to chunks; then chunks and a data set's name."""
    at = 0

    def number() -> int:
        nonlocal at
        if at + 4 > len(data):
            raise CorruptError(f"the file ends at byte {len(data)}, inside of an entry", where=path, hint=_AGAIN)
        at += 4
        value: int = _I32.unpack_from(data, at - 4)[0]
        return value

    def take(size: int, most: int) -> bytes:
        nonlocal at
        if not 0 < size <= most:
            raise _not_one(path, "no GGUF, and no entry where the older format has one")
        if at + size > len(data):
            raise CorruptError(f"the file ends at byte {len(data)}, inside of an entry", where=path, hint=_AGAIN)
        at += size
        return data[at - size : at]

    count = number()
    if not 0 < count <= len(data) // 16:
        raise _not_one(path, "neither a GGUF nor the older format")
    entries = {}
    for _ in range(count):
        try:
            name = take(number(), LONGEST_NAME).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _not_one(path, "the older format, with a name that is no text") from error
        calls = max(number(), 1)  # a quantizer takes the sums of an entry without calls as they are
        sums = np.frombuffer(take(4 * number(), len(data)), "<f4").astype(np.float32, copy=False)
        entries[name] = Entry(sums.reshape(1, -1), np.array([calls], dtype=np.int64))
    chunks = 0
    datasets: tuple[str, ...] = ()
    if at < len(data):
        chunks = number()
        if at < len(data) and (size := number()) > 0:
            datasets = (take(size, len(data)).decode("utf-8", "replace"),)
    return Importance(entries, datasets, chunks, 0, path)


def file_parts(matrix: Importance) -> Iterator[bytes]:
    """The GGUF file of an importance matrix, piece by piece, byte for byte as llama-imatrix writes it."""
    arrays: list[tuple[str, NDArray[np.float32]]] = []
    for name, entry in sorted(matrix.entries.items()):
        arrays += [(name + SUMS, entry.sums), (name + COUNTS, entry.counts.astype(np.float32)[:, None])]
    values = (
        array_value("string", matrix.datasets),
        scalar_value("u32", matrix.chunks),
        scalar_value("u32", matrix.chunk_size),
    )
    metadata = Metadata({"general.type": string_value("imatrix"), **dict(zip(KEYS, values, strict=True))})
    tensors = [Tensor(name, _shape(array), "F32", (Blob(NOWHERE, 0, array.nbytes),)) for name, array in arrays]
    yield gguf.header_bytes(metadata, tensors, ALIGNMENT)
    for _, array in arrays:
        data = array.astype("<f4", copy=False).tobytes()
        yield data + bytes(-len(data) % ALIGNMENT)


def _shape(array: NDArray[np.float32]) -> tuple[int, ...]:
    """As ggml counts dimensions: none for a leading 1."""
    return array.shape if len(array) > 1 else array.shape[1:]
