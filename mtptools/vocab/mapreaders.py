"""Numbers of token ids as they stand in somebody's file: one reader a container, none of which judges them.

A `.pt` is read by torch with weights_only: no code in it is run. Nothing is allocated by what a header claims.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as short  # a damaged value may be a megabyte long
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import open_checkpoint
from mtptools.containers import gguf, safetensors
from mtptools.errors import CorruptError, InputError, MissingExtraError, typed
from mtptools.tokens import tokenizer_facts
from mtptools.vocab.maps import Problem
from mtptools.vocab.stored import D2T, SIZE_KEY, T2D, Kind, Mask, Values, raw, read_d2t, read_t2d

__all__ = ["SCHEMA", "TOKENIZER", "StoredIds", "read_numbers", "refusal"]

SCHEMA: Final = 1
TOKENIZER: Final = "tokenizer_sha256"
LARGEST: Final = 64 << 20  # bytes; a million ids in indented JSON take a quarter of it
_LINE: Final = re.compile(rb"-?[0-9]{1,18}")
_LIMIT: Final = 1 << 62


@dataclass(frozen=True)
class StoredIds:
    """Numbers of a file as they stand there.

    kind       what the file says they are; None when it does not
    mask       t2d beside them
    place      names the place of the i-th
    size       of the vocabulary they are for, where the file says it
    tokenizer  its hash, where the file says it
    """

    values: Values
    kind: Kind | None
    mask: Mask | None = None
    place: Callable[[int], str] = "entry {}".format
    size: int | None = None
    tokenizer: str | None = None


def read_numbers(path: Path, size: int) -> StoredIds:
    """By what the file begins with, and by its suffix where that says more.

    Raises CorruptError, InputError, MissingExtraError for a .pt without torch, OSError.
    """
    return _checkpoint(path, size) if path.is_dir() or _begins(path, gguf.MAGIC) else _file(path, size)


def refusal(wrong: Sequence[Problem], where: object, hint: str | None = None) -> InputError:
    said = "; ".join(f"{what} ({evidence})" for what, evidence in wrong)
    return InputError(
        f"no draft vocabulary: {said}", where=where, hint=hint or "is it of this model? mtptools prune-vocab --help"
    )


def _begins(path: Path, magic: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(magic)) == magic


def _checkpoint(path: Path, size: int) -> StoredIds:
    ckpt = open_checkpoint(path, generic=True)
    found = raw(ckpt, size)
    if found is None:
        raise InputError("its head is not reduced: it holds no d2t", where=path, hint="give a list, or a reduced head")
    if found.problems or found.ids is None:
        raise refusal(found.problems, path)
    tokens = tokenizer_facts(ckpt)
    return StoredIds(found.ids, "absolute", tokenizer=None if tokens is None else tokens.digest)


def _file(path: Path, size: int) -> StoredIds:
    suffix = path.suffix.lower()
    if suffix == ".safetensors":
        return _safetensors(path, size)
    nbytes = path.stat().st_size
    if not 0 < nbytes <= LARGEST:
        what = "empty" if not nbytes else f"{nbytes} bytes: no list of ids is that large"
        raise InputError(what, where=path, hint="give a list of ids, a map, or a pruned checkpoint")
    data = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = typed(path)
        raise InputError("UTF-16 text", where=path, hint=f"iconv -f UTF-16 -t UTF-8 {name} > {name}.utf8")
    if suffix == ".npy" or data.startswith(b"\x93NUMPY"):
        return _npy(path)
    if suffix in (".pt", ".pth", ".bin") or data.startswith((b"PK\x03\x04", b"\x80\x02")):
        return _torch(path, size)
    if suffix == ".json" or data.lstrip()[:1] in (b"[", b"{"):
        return _json(data, path)
    return _text(data, path)


def _text(data: bytes, path: Path) -> StoredIds:
    lines = [(n, line) for n, raw_line in enumerate(data.splitlines(), 1) if (line := raw_line.strip())]
    if not lines:
        raise CorruptError("holds no ids", where=path, hint="one id a line")
    for n, line in lines:
        if not _LINE.fullmatch(line):
            shown = short(line.decode("utf-8", "backslashreplace"))
            raise CorruptError(f"line {n} is {shown}, no whole number", where=path, hint="one id a line, nothing else")
    numbers = [n for n, _ in lines]
    values = np.array([int(line) for _, line in lines], dtype=np.int64)
    return StoredIds(values, "absolute", place=lambda i: f"line {numbers[i]}")


def _json(data: bytes, path: Path) -> StoredIds:
    tree = safetensors.parse_json(data, path)
    if isinstance(tree, list):
        return StoredIds(_whole(tree, path), _unless_d2t(path))
    if not isinstance(tree, dict) or not isinstance(tree.get("ids"), list):
        raise CorruptError("neither a list of ids nor an object with `ids`", where=path, hint='{"ids": [0, 1, 5]}')
    schema, kind, size, tokens = (tree.get(key) for key in ("schema", "kind", "vocab_size", TOKENIZER))
    if schema not in (None, SCHEMA):
        raise InputError(f"schema {short(schema)}, this version reads {SCHEMA}", where=path, hint="update mtptools")
    if kind not in (None, "absolute", "offsets"):
        raise CorruptError(f"kind is {short(kind)}", where=path, hint="absolute or offsets")
    if not (tokens is None or isinstance(tokens, str)) or not (size is None or _is_id(size)):
        raise CorruptError(f"vocab_size {short(size)}, {TOKENIZER} {short(tokens)}", where=path, hint="make it again")
    return StoredIds(_whole(tree["ids"], path), kind or "absolute", size=size, tokenizer=tokens)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_LIMIT < value < _LIMIT


def _whole(values: list[Any] | tuple[Any, ...], path: Path) -> Values:
    for n, value in enumerate(values):
        if not _is_id(value):
            raise CorruptError(f"entry {n} is {short(value)}, no id", where=path, hint="a list of whole numbers")
    return np.array(values, dtype=np.int64)


def _npy(path: Path) -> StoredIds:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a header may claim any length
    except (ValueError, EOFError, SyntaxError) as error:
        raise CorruptError(f"no numpy array ({error})", where=path, hint="np.save(path, ids)") from error
    return _array(np.asarray(array), path)


def _array(array: NDArray[Any], path: Path) -> StoredIds:
    """Of one dimension: ids, or the mask of a vocabulary."""
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise CorruptError(f"holds {array.dtype} {list(array.shape)}", where=path, hint="a list of whole numbers")
    if array.dtype.kind == "b":
        return StoredIds(np.flatnonzero(array).astype(np.int64), "absolute", size=len(array))
    if array.dtype.kind == "u" and len(array) and int(array.max()) >= _LIMIT:
        raise CorruptError(f"entry {int(np.argmax(array))} is {int(array.max())}, no id", where=path)
    return StoredIds(array.astype(np.int64), _unless_d2t(path))


def _torch(path: Path, size: int) -> StoredIds:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", "decoder", "reading a .pt") from error
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes torch raise nearly anything
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(
            f"not readable as lists and tensors of torch.save ({short(what)})", where=path, hint="torch.save(ids, path)"
        ) from error
    if isinstance(tree, (list, tuple)):
        return StoredIds(_whole(tree, path), _unless_d2t(path))
    if isinstance(tree, torch.Tensor):
        return _array(_of_torch(tree, path), path)
    if not isinstance(tree, dict) or not isinstance(tree.get(D2T), torch.Tensor):
        raise CorruptError(f"holds {type(tree).__name__}, no list of ids", where=path, hint="torch.save(ids, path)")
    found, t2d = _array(_of_torch(tree[D2T], path), path), tree.get(T2D)
    if t2d is None:
        return replace(found, kind=None)
    mask: NDArray[Any] = _of_torch(t2d, path) if isinstance(t2d, torch.Tensor) else np.empty(0)
    if mask.dtype != np.bool_ or mask.shape != (size,):
        raise CorruptError(f"t2d is no mask of {size} tokens", where=path, hint="is it of this model?")
    return replace(found, kind=None, mask=mask)


def _of_torch(tensor: Any, path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.numpy()
    except (TypeError, RuntimeError) as error:  # a type that numpy lacks; sparse; of another device
        raise CorruptError(f"holds {tensor.dtype}", where=path, hint="a list of whole numbers") from error
    return array


def _unless_d2t(path: Path) -> Kind | None:
    """Lists are absolute ids everywhere; only a file called d2t may be either."""
    return None if path.stem == D2T else "absolute"


def _safetensors(path: Path, size: int) -> StoredIds:
    index = safetensors.read_index(path)
    d2t, t2d = index.tensors.get(D2T), index.tensors.get(T2D)
    if d2t is None:
        raise InputError("holds no d2t", where=path, hint="give a map, or a list of ids")
    values, wrong = read_d2t(d2t, size)
    mask, also = read_t2d(t2d, size) if t2d is not None else (None, [])
    stated = index.metadata.get(SIZE_KEY, str(d2t.n_values))
    if stated != str(d2t.n_values):
        also.append((f"{SIZE_KEY} is {short(stated)}", f"d2t has {d2t.n_values} rows"))
    if values is None or also:
        raise refusal([*wrong, *also], path)
    return StoredIds(values, None, mask, "row {}".format, tokenizer=index.metadata.get(TOKENIZER))
