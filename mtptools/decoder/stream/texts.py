"""Text for one pass, from files: plain text, records of a prompt and what followed, or what `generate` printed."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mtptools.decoder.stream.passages import Passage
from mtptools.decoder.tokenizer import Tokenizer
from mtptools.errors import InputError, typed
from mtptools.prompts import HALF

__all__ = ["COMPLETIONS", "passages_of", "read_passages"]

COMPLETIONS: Final = ("completion", "response", "output", "answer", "generated")
"""Fields of a record that may hold what followed its `prompt`; a file says which by having it."""

BYTES: Final = 64
"""Of text by token, more than any text has."""

SURE: Final = 16
"""Tokens before a cut that it may have made others of."""

_HINT: Final = (
    "a text file, JSONL of objects with text, or with prompt and completion, or what mtptools generate --json printed"
)


def passages_of(prompts: Iterable[str], tokenizer: Tokenizer, positions: int) -> list[Passage]:
    """Texts without a prompt, every position of which counts: as many as make so many tokens."""
    found: list[Passage] = []
    left = positions
    for text in prompts:
        if left <= 0:
            break
        ids = _encoded(text, tokenizer, left)
        left -= len(ids)
        if len(ids) > 1:
            found.append(Passage(tuple(ids)))
    return found


def _encoded(text: str, tokenizer: Tokenizer, wanted: int) -> list[int]:
    """At least the first `wanted` tokens of a text, which may be far longer."""
    size = max(wanted * 8, 1 << 12)
    while True:
        ids = tokenizer.encode(text[:size])
        if size >= len(text) or len(ids) > wanted + SURE:
            return ids
        size *= 4


def read_passages(path: Path, tokenizer: Tokenizer, vocab: int, positions: int) -> list[Passage]:
    """The passages of one file, of `.json` and `.jsonl` (or gzipped) one a record, until there are so many tokens.

    Raises InputError.
    """
    if not {".json", ".jsonl"} & set(path.suffixes):
        return passages_of([_text(path, max(positions * BYTES, 1 << 20))], tokenizer, positions)
    found: list[Passage] = []
    for at, record in _records(_text(path), path):
        if sum(len(passage.ids) for passage in found) >= positions:
            break
        found.append(_passage(record, at, path, tokenizer, vocab))
    return found


def _text(path: Path, limit: int = -1) -> str:
    """The text of a file, gzipped or not; at most so many bytes."""
    data = b""
    try:
        with open(path, "rb") as plain:
            packed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open(path, "rb") as file:
            data = file.read(limit)
            whole = limit < 0 or not file.read(1)
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, whole)
    except FileNotFoundError as error:
        raise InputError("no such file of text", where=path, hint="check the path") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read the text: {error}", where=path, hint=_HINT) from error
    except UnicodeDecodeError as error:
        wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        hint = f"iconv -f UTF-16 -t UTF-8 {typed(path)} > utf-8.txt" if wide else _HINT
        raise InputError(f"not UTF-8 text{', but UTF-16' * wide}", where=path, hint=hint) from error


def _records(text: str, where: Path) -> Iterator[tuple[str, Any]]:
    """(place, record): of one JSON value, each of a list, or one a line."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if whole is not None:
        yield from ((f"entry {n}", one) for n, one in enumerate(whole if isinstance(whole, list) else [whole], 1))
        return
    for n, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"line {n}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"line {n} is not JSON ({error})", where=where, hint=_HINT) from error


def _passage(record: Any, at: str, where: Path, tokenizer: Tokenizer, vocab: int) -> Passage:
    fields = record if isinstance(record, dict) else {"text": record}
    before, after = fields.get("prompt_tokens"), fields.get("tokens")
    if isinstance(before, list) and isinstance(after, list):  # ids, as they were: no tokenizer comes between
        ids = [*before, *after]
        if not all(type(token) is int and 0 <= token < vocab for token in ids):
            raise InputError(f"{at} holds token ids that the model does not have", where=where, hint="its own text")
        return Passage(tuple(ids), max(len(before), 1))
    if any(isinstance(one, str) and HALF.search(one) for one in fields.values()):
        raise InputError(f"{at} holds half a character (a lone surrogate)", where=where, hint="escape it as a pair")
    prompt, text = fields.get("prompt"), fields.get("text")
    followed = next((fields[name] for name in COMPLETIONS if isinstance(fields.get(name), str)), None)
    if isinstance(prompt, str) and followed is None:
        followed = text if isinstance(text, str) else None
    if isinstance(prompt, str) and followed is not None:
        whole, start = tokenizer.encode(prompt + followed), tokenizer.encode(prompt)
        common = next((n for n, pair in enumerate(zip(whole, start, strict=False)) if pair[0] != pair[1]), len(start))
        return Passage(tuple(whole), max(min(common, len(whole)), 1))
    if isinstance(text, str):
        return Passage(tuple(tokenizer.encode(text)))
    raise InputError(f"{at} holds no text", where=where, hint=_HINT)
