"""Prompts to decode: a small built-in set, text files, and the JSONL formats of common benchmarks."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from mtptools.errors import InputError

__all__ = ["HALF", "Prompt", "builtin_prompts", "load_prompts", "read_prompts", "spread"]

_HINT = (
    "one prompt a line, or JSONL (or a JSON list) of strings, or of objects with prompt, question, turns or text "
    "(MT-Bench, Spec-Bench, HumanEval, GSM8K)"
)
HALF = re.compile("[\ud800-\udfff]")  # half a surrogate pair: no text has it


class Prompt(NamedTuple):
    """`category` is what a benchmark calls the kind of task, "" where the file does not say."""

    text: str
    category: str = ""


def builtin_prompts() -> list[str]:
    """The texts of the built-in set."""
    return [prompt.text for prompt in read_prompts(None)]


def load_prompts(path: Path) -> list[str]:
    """The texts of `read_prompts(path)`."""
    return [prompt.text for prompt in read_prompts(path)]


def read_prompts(path: Path | None) -> list[Prompt]:
    """Prompts of a file: `.jsonl`, a `.json` list, either gzipped, else text with one prompt a line.

    None is the built-in set: prose, dialogue, lists, code; short, so that decoding and not reading takes the time.
    Raises InputError.
    """
    if path is None:
        builtin = files("mtptools").joinpath("data/prompts.jsonl")
        return _jsonl(builtin.read_text(encoding="utf-8"), "built-in prompts")
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except FileNotFoundError as error:
        raise InputError(
            "no such file of prompts", where=path, hint="leave --prompts out for a built-in set"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read prompts: {error}", where=path, hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise InputError("prompts are not UTF-8 text", where=path, hint=_HINT) from error
    if ".json" in path.suffixes and text.lstrip().startswith("["):
        found = _json_list(text, path)
    elif {".json", ".jsonl"} & set(path.suffixes):
        found = _jsonl(text, path)
    else:
        found = [Prompt(line) for line in _lines(text) if line.strip()]
    if not found:
        raise InputError("no prompt in the file", where=path, hint=_HINT)
    return found


def spread(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """`limit` prompts, one of each category in turn, in the file's order; all of them without a limit."""
    turns: dict[str, int] = {}
    ranked = []
    for at, prompt in enumerate(prompts):
        turn = turns[prompt.category] = turns.get(prompt.category, -1) + 1
        ranked.append((turn, at))
    return [prompts[at] for at in sorted(at for _, at in sorted(ranked)[:limit])]


def _lines(text: str) -> list[str]:
    """Lines as a file has them; a JSON string may hold what else `str.splitlines` cuts at, such as U+2028."""
    return re.split("\r\n|\r|\n", text)


def _json_list(text: str, where: object) -> list[Prompt]:
    return [_prompt(record, f"entry {n}", where) for n, record in enumerate(_parsed(text, "the file", where), 1)]


def _jsonl(text: str, where: object) -> list[Prompt]:
    lines = ((f"line {n}", line) for n, line in enumerate(_lines(text), 1) if line.strip())
    return [_prompt(_parsed(line, at, where), at, where) for at, line in lines]


def _parsed(text: str, what: str, where: object) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON ({error})", where=where, hint=_HINT) from error


def _prompt(record: Any, what: str, where: object) -> Prompt:
    """The prompt of one record: a string, or of an object the first of its fields that holds one."""
    fields = [record]
    if isinstance(record, dict):
        fields = [_first_turn(record.get("turns")), *(record.get(key) for key in ("prompt", "question", "text"))]
    prompt = next((field for field in fields if isinstance(field, str) and field), None)
    if prompt is None:
        raise InputError(f"{what} holds no prompt", where=where, hint=_HINT)
    if HALF.search(prompt):
        raise InputError(f"{what} holds half a character (a lone surrogate)", where=where, hint="escape it as a pair")
    return Prompt(prompt, _category(record))


def _category(record: Any) -> str:
    """`category` (MT-Bench, Spec-Bench), else the set that `task_id` names before its slash (HumanEval)."""
    stated, task = (record.get(key) if isinstance(record, dict) else None for key in ("category", "task_id"))
    if not isinstance(stated, str):
        stated = task.rpartition("/")[0] if isinstance(task, str) else ""
    return HALF.sub("\ufffd", " ".join(stated.split()))


def _first_turn(turns: Any) -> Any:
    """What the user says first: turns are strings, or objects with role and content."""
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, str):
            return turn
        if isinstance(turn, dict) and turn.get("role", "user") == "user":
            return turn.get("content")
    return None
