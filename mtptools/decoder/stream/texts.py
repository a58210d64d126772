"""Text for one pass, from files: plain text, records of a prompt and what followed, or what `generate` printed."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from mtptools.decoder.stream.passages import Passage
from mtptools.decoder.tokenizer import Tokenizer
from mtptools.errors import InputError

__all__ = ["COMPLETIONS", "passages_of", "read_passages"]

COMPLETIONS: Final = ("completion", "response", "output", "answer", "generated")
"""Fields of a record that may hold what followed its `prompt`; a file says which by having it."""

_HINT: Final = (
    "a text file, JSONL of objects with text, or with prompt and completion, or what mtptools generate --json printed"
)


def passages_of(prompts: Sequence[str], tokenizer: Tokenizer) -> list[Passage]:
    """Texts without a prompt: every position counts."""
    encoded = [tokenizer.encode(text) for text in prompts]
    return [Passage(tuple(ids)) for ids in encoded if len(ids) > 1]


def read_passages(path: Path, tokenizer: Tokenizer, vocab: int) -> list[Passage]:
    """The passages of one file, of `.json` and `.jsonl` (or gzipped) one a record. Raises InputError."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("no such file of text", where=path, hint=_HINT) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read the text: {error}", where=path, hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=path, hint=_HINT) from error
    if not {".json", ".jsonl"} & set(path.suffixes):
        return passages_of([text], tokenizer)
    return [_passage(record, at, path, tokenizer, vocab) for at, record in _records(text, path)]


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
