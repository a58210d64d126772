"""Prompts to decode: a small built-in set, text files, and the JSONL formats of common benchmarks."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from mtptools.errors import InputError

__all__ = ["builtin_prompts", "load_prompts"]

_HINT = "one prompt a line, or JSONL with prompt, question, turns or text (MT-Bench, Spec-Bench, HumanEval, GSM8K)"


def builtin_prompts() -> list[str]:
    """The built-in set: prose, dialogue, lists, code; short, so that decoding and not reading takes the time."""
    return _jsonl(files("mtptools").joinpath("data/prompts.jsonl").read_text(encoding="utf-8"), "built-in prompts")


def load_prompts(path: Path) -> list[str]:
    """Prompts of a file: `.jsonl` or `.jsonl.gz`, else text with one prompt a line. Raises InputError."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8")
    except (OSError, EOFError) as error:
        raise InputError(f"cannot read prompts: {error}", where=path) from error
    except UnicodeDecodeError as error:
        raise InputError("prompts are not UTF-8 text", where=path, hint=_HINT) from error
    if ".jsonl" in path.suffixes or path.suffix == ".json":
        found = _jsonl(text, path)
    else:
        found = [line for line in text.splitlines() if line.strip()]
    if not found:
        raise InputError("no prompt in the file", where=path, hint=_HINT)
    return found


def _jsonl(text: str, where: object) -> list[str]:
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"line {number} is not JSON ({error})", where=where, hint=_HINT) from error
        prompt = _prompt(record)
        if not prompt:
            raise InputError(f"line {number} holds no prompt", where=where, hint=_HINT)
        out.append(prompt)
    return out


def _prompt(record: Any) -> str | None:
    if isinstance(record, str):
        return record
    if not isinstance(record, dict):
        return None
    turns = record.get("turns")
    if isinstance(turns, list) and turns:
        return str(turns[0])
    return next((str(record[key]) for key in ("prompt", "question", "text") if record.get(key)), None)
