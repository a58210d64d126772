"""Lists of token ids and maps in files of their own: read whatever people have, write what runtimes load.

What the readers of each format take was read in their sources (commits in `LOADED_BY`). None of them wants a certain
order or size: nothing is padded, and ids are written ascending.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mtptools import __version__
from mtptools.containers import safetensors
from mtptools.errors import InputError, SystemFailure, TokenizerError, UsageError, typed
from mtptools.tensors import NOWHERE, Blob, Tensor
from mtptools.vocab.mapreaders import SCHEMA, TOKENIZER, StoredIds, read_numbers, refusal
from mtptools.vocab.maps import Absolute, DraftVocabulary, Offsets, Problem, absolute, problems
from mtptools.vocab.stored import ABSOLUTE_IDS, D2T, SIZE_KEY, T2D, Kind, Values, disagreement, marks, told

__all__ = ["FORMATS", "LOADED_BY", "Format", "file_bytes", "read_ids", "receipt"]

AS: Final = "say which: --ids-as absolute|offsets"


@dataclass(frozen=True)
class Format:
    """suffix of its file, what its numbers are, and one line on what is inside"""

    name: str
    suffix: str
    kind: Kind
    what: str


FORMATS: Final[Mapping[str, Format]] = {
    one.name: one
    for one in (
        Format("ids", ".txt", "absolute", "one id a line, nothing else"),
        Format("json", ".json", "absolute", "an object with `ids`, and the tokenizer's hash"),
        Format("npy", ".npy", "absolute", "a numpy array, int64 [n]"),
        Format("sglang", ".pt", "absolute", "a list of ids, as torch.save writes it"),
        Format("eagle3", ".safetensors", "offsets", "d2t I64 [n] and t2d BOOL [vocab]; draft_vocab_size in the header"),
    )
}

LOADED_BY: Final[Mapping[str, str]] = {
    "ids": "The vLLM overlay of MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks (files/patch_mtp_draft_vocab.py, 31ccfa2: "
    "VLLM_MTP_DRAFT_VOCAB, one id a line, no comments). Stock vLLM has no MTP class that takes a list. What "
    "exllamav3's PR 303 takes was not read.",
    "json": "MTPLX from 2.10 (mtplx/frspec_draft.py, 49a1948: MTPLX_FRSPEC_DRAFT=1, MTPLX_FRSPEC_VOCAB=FILE, an object "
    "with `ids` or a list). The draft head must be quantized; MTPLX_FRSPEC_N cuts lists by frequency and must stay "
    "unset: these ids ascend.",
    "npy": "MTPLX, as json (same commit; read with allow_pickle=False). Its PR 317 took it in MTPLX_DRAFT_VOCAB_IDS.",
    "sglang": "SGLang, --speculative-token-map FILE with EAGLE and NEXTN (load_token_map in "
    "python/sglang/srt/speculative/spec_utils.py, init_lm_head in eagle_worker_v2.py, 006b0e3). It cuts the rows in "
    "memory; ignored with EAGLE3, unsafe with a quantized head or tensor parallelism.",
    "eagle3": "Runtimes that read EAGLE-3's d2t: vLLM and SGLang for EAGLE-3 heads. No MTP class of vLLM 0.33 reads "
    "it; llama.cpp's converter makes absolute ids of it.",
}


def read_ids(
    path: str | Path, size: int, *, tokenizer_sha256: str | None = None, kind: Kind | None = None
) -> DraftVocabulary:
    """The draft vocabulary in a file, of a model with `size` tokens.

    Text (one id a line), JSON (a list, or an object with `ids`), .npy, .pt, safetensors with d2t, and a GGUF or a
    model folder with d2t. A list may stand in any order.

    tokenizer_sha256  of the model; what the file or FILE.receipt.json says must be the same
    kind              what the numbers are, where the file does not tell

    Raises InputError (CorruptError, TokenizerError) for what is no draft vocabulary of this model, MissingExtraError
    for a .pt without torch, SystemFailure when the file cannot be read.
    """
    path = Path(path)
    if not (path.is_file() or path.is_dir()):
        what = "a pipe, or no plain file: it is read more than once" if path.exists() else "no such file or folder"
        raise InputError(what, where=path, hint="give a file: a list of ids, a map, or a pruned checkpoint")
    try:
        found = read_numbers(path, size)
        beside = path.with_name(path.name + ".receipt.json")
        recorded = [found.tokenizer, _of_receipt(beside) if beside.is_file() else None]
    except OSError as error:
        raise SystemFailure(f"cannot read: {error.strerror or error}", where=error.filename or path) from error
    _same_tokenizer(path, recorded, tokenizer_sha256)
    if found.size is not None and found.size != size:
        raise InputError(
            f"made for a vocabulary of {found.size} tokens, the model has {size}",
            where=path,
            hint="is it of this model?",
        )
    return DraftVocabulary.of(_absolute(found, size, kind, path), size, path)


def _absolute(found: StoredIds, size: int, kind: Kind | None, path: Path) -> Absolute:
    """Ascending absolute ids. Raises InputError with everything that is wrong, and where."""
    if kind is not None and found.kind not in (None, kind):
        raise InputError(f"its numbers are {found.kind}, not {kind}", where=path, hint="leave --ids-as away")
    known = kind or found.kind or _established(found, size, path)
    ids = _as(found.values, known)
    wrong = _wrong(ids, size, found.place)
    if found.mask is not None and not marks(found.mask, ids):
        wrong.append(disagreement(found.mask, ids))
    if wrong:
        other: Kind = "offsets" if known == "absolute" else "absolute"
        works = kind is None and other in told(found.values, size)
        raise refusal(wrong, path, f"as {other} they are a map: --ids-as {other}" if works else None)
    return Absolute(np.sort(ids))


def _established(found: StoredIds, size: int, path: Path) -> Kind:
    """What a d2t holds: EAGLE-3's offsets by its t2d, or the only thing that it can. Raises InputError."""
    values = found.values
    if found.mask is not None:
        if marks(found.mask, Absolute(values)) and not marks(found.mask, _as(values, "offsets")):
            evidence = "t2d marks the tokens that d2t names as it stands"
            raise refusal([(ABSOLUTE_IDS, evidence)], path, "if that is meant: --ids-as absolute")
        return "offsets"
    ways = told(values, size)
    if len(ways) > 1:
        both = ", ".join(f"{way}: tokens {_ends(_as(values, way))}" for way in ways)
        raise refusal([("nothing says whether these are absolute ids or offsets", f"both can be; {both}")], path, AS)
    return ways[0] if ways else "offsets"


def _as(values: Values, kind: Kind) -> Absolute:
    return Absolute(values) if kind == "absolute" else absolute(Offsets(values))


def _ends(ids: Absolute) -> str:
    return f"{int(ids.min())} to {int(ids.max())}"


def _wrong(ids: Absolute, size: int, place: Callable[[int], str]) -> list[Problem]:
    """As `problems`, in any order, with the places."""
    if ids.ndim != 1 or not len(ids):
        return problems(ids, size)
    out: list[Problem] = []
    wild = np.flatnonzero((ids < 0) | (ids >= size))
    if len(wild):
        first = int(wild[0])
        evidence = f"{len(wild)} of {len(ids)}; {place(first)} is {int(ids[first])}, the vocabulary has {size}"
        out.append(("ids out of range", evidence))
    order = np.argsort(ids, kind="stable")
    twice = np.flatnonzero(np.diff(ids[order]) == 0)
    if len(twice):
        at, again = int(order[twice[0]]), int(order[twice[0] + 1])
        out.append(
            ("ids stand more than once", f"{len(twice)} times; {int(ids[at])} at {place(at)} and {place(again)}")
        )
    return out


def _of_receipt(path: Path) -> str | None:
    tree = safetensors.load_json(path)
    stated = tree.get(TOKENIZER) if isinstance(tree, dict) else None
    return stated if isinstance(stated, str) else None


def _same_tokenizer(path: Path, recorded: list[str | None], wanted: str | None) -> None:
    other = [digest for digest in recorded if digest is not None and wanted is not None and digest != wanted]
    if other:
        raise TokenizerError(
            f"its ids are of another tokenizer: {other[0][:12]}…, the model's is {str(wanted)[:12]}…",
            where=path,
            hint="ids of another tokenizer name other tokens: make a list with this model, prune-vocab --corpus FILE",
        )


def file_bytes(vocabulary: DraftVocabulary, name: str, tokenizer_sha256: str | None) -> bytes:
    """The file in format `name`, a key of FORMATS. Raises UsageError for another name."""
    if name not in FORMATS:
        raise UsageError(f"no format {typed(name)}", hint=f"one of {', '.join(FORMATS)}")
    return _WRITERS[name](vocabulary, tokenizer_sha256)


def _write_text(vocabulary: DraftVocabulary, _: str | None) -> bytes:
    return "".join(f"{one}\n" for one in vocabulary.ids.tolist()).encode()


def _write_json(vocabulary: DraftVocabulary, tokens: str | None) -> bytes:
    head = {"schema": SCHEMA, "kind": "absolute", "vocab_size": vocabulary.size, TOKENIZER: tokens}
    return (json.dumps(head | {"ids": vocabulary.ids.tolist()}, separators=(",", ":")) + "\n").encode()


def _write_npy(vocabulary: DraftVocabulary, _: str | None) -> bytes:
    out = io.BytesIO()
    np.save(out, vocabulary.ids.astype("<i8"), allow_pickle=False)
    return out.getvalue()


def _write_torch(vocabulary: DraftVocabulary, _: str | None) -> bytes:
    """As torch.save writes a list: a zip, uncompressed. SGLang calls torch.tensor on it, which warns of a tensor."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("data.pkl", pickle.dumps(vocabulary.ids.tolist(), 2)), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), data)  # the year 1980: the same bytes every time
    return out.getvalue()


def _write_safetensors(vocabulary: DraftVocabulary, tokens: str | None) -> bytes:
    parts = [
        ("I64", D2T, vocabulary.offsets.astype("<i8").tobytes(), len(vocabulary)),
        ("BOOL", T2D, vocabulary.mask.astype(np.uint8).tobytes(), vocabulary.size),
    ]
    tensors = [Tensor(name, (n,), codec, (Blob(NOWHERE, 0, len(data)),)) for codec, name, data, n in parts]
    metadata = {"format": "pt", SIZE_KEY: str(len(vocabulary))} | ({TOKENIZER: tokens} if tokens else {})
    return safetensors.header_bytes(metadata, tensors) + b"".join(data for _, _, data, _ in parts)


_WRITERS: Final[Mapping[str, Callable[[DraftVocabulary, str | None], bytes]]] = {
    "ids": _write_text,
    "json": _write_json,
    "npy": _write_npy,
    "sglang": _write_torch,
    "eagle3": _write_safetensors,
}


def receipt(
    vocabulary: DraftVocabulary, name: str, data: bytes, tokenizer_sha256: str | None, origin: object
) -> dict[str, Any]:
    """What stands beside a map: FILE.receipt.json.

    data    the file's bytes
    origin  what the ids come from, as JSON
    """
    return {
        "schema": SCHEMA,
        "tool": "mtptools",
        "version": __version__,
        "verb": "prune-vocab",
        "format": name,
        "kind": FORMATS[name].kind,
        "tokens": len(vocabulary),
        "vocab_size": vocabulary.size,
        TOKENIZER: tokenizer_sha256,
        "sha256": hashlib.sha256(data).hexdigest(),
        "ids_sha256": hashlib.sha256(vocabulary.ids.astype("<i8").tobytes()).hexdigest(),
        "origin": origin,
        "loaded_by": LOADED_BY[name],
    }
