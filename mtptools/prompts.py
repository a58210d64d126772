"""Prompts to decode: a small built-in set, text files, and the JSONL formats of common benchmarks."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from mtptools.errors import InputError

__all__ = ["builtin_prompts", "load_prompts"]

_HINT = (
    "one prompt a line, or JSONL (or a JSON list) of strings, or of objects with prompt, question, turns or text "
    "(MT-Bench, Spec-Bench, HumanEval, GSM8K)"
)
_HALF = re.compile("[\ud800-\udfff]")  # half a surrogate pair: no text has it


def builtin_prompts() -> list[str]:
    """The built-in set: prose, dialogue, lists, code; short, so that decoding and not reading takes the time."""
    return _jsonl(files("mtptools").joinpath("data/prompts.jsonl").read_text(encoding="utf-8"), "built-in prompts")


def load_prompts(path: Path) -> list[str]:
    """Prompts of a file: `.jsonl`, a `.json` list, either gzipped, else text with one prompt a line.

    Raises InputError.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read prompts: {error}", where=path, hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise InputError("prompts are not UTF-8 text", where=path, hint=_HINT) from error
    if ".json" in path.suffixes and text.lstrip().startswith("["):
        found = _json_list(text, path)
    elif {".json", ".jsonl"} & set(path.suffixes):
        found = _jsonl(text, path)
    else:
        found = [line for line in _lines(text) if line.strip()]
    if not found:
        raise InputError("no prompt in the file", where=path, hint=_HINT)
    return found


def _lines(text: str) -> list[str]:
    """Lines as a file has them; a JSON string may hold what else `str.splitlines` cuts at, such as U+2028."""
    return re.split("\r\n|\r|\n", text)


def _json_list(text: str, where: object) -> list[str]:
    return [_prompt(record, f"entry {n}", where) for n, record in enumerate(_parsed(text, "the file", where), 1)]


def _jsonl(text: str, where: object) -> list[str]:
    lines = ((f"line {n}", line) for n, line in enumerate(_lines(text), 1) if line.strip())
    return [_prompt(_parsed(line, at, where), at, where) for at, line in lines]


def _parsed(text: str, what: str, where: object) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON ({error})", where=where, hint=_HINT) from error


def _prompt(record: Any, what: str, where: object) -> str:
    """The prompt of one record: a string, or of an object the first of its fields that holds one."""
    fields = [record]
    if isinstance(record, dict):
        fields = [_first_turn(record.get("turns")), *(record.get(key) for key in ("prompt", "question", "text"))]
    prompt = next((field for field in fields if isinstance(field, str) and field), None)
    if prompt is None:
        raise InputError(f"{what} holds no prompt", where=where, hint=_HINT)
    if _HALF.search(prompt):
        raise InputError(f"{what} holds half a character (a lone surrogate)", where=where, hint="escape it as a pair")
    return prompt


def _first_turn(turns: Any) -> Any:
    """What the user says first: turns are strings, or objects with role and content."""
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, str):
            return turn
        if isinstance(turn, dict) and turn.get("role", "user") == "user":
            return turn.get("content")
    return None
