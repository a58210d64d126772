"""One file of a corpus as documents: text as it stands, JSONL, a JSON list; gzipped or not."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast

from mtptools.errors import InputError, typed

__all__ = ["HINT", "Opened", "Text", "documents", "opened", "refusal", "sizes"]

CHUNK: Final = 1 << 16  # bytes read at once
FIRST_LINE: Final = 1 << 20  # bytes looked at to tell what a .json holds
LARGEST_JSON: Final = 1 << 26  # bytes of a list, which can only be read whole
LARGEST_LINE: Final = 1 << 25  # bytes of a record of JSONL

# fmt: off
FIELDS: Final = frozenset((
    "system", "text", "content", "value", "instruction", "prompt", "question", "input", "turns", "messages",
    "conversations", "reasoning_content", "tool_calls", "function", "arguments", "completion", "response", "answer",
    "output", "solution", "canonical_solution", "code",
))
# fmt: on
"""Where a JSON record may hold text: in strings, in lists, and in objects that have such fields again."""
HINT: Final = (
    "text in UTF-8; JSONL (or a JSON list) of strings or of objects with text, content, prompt, messages, response …; "
    "or a folder of such files"
)
_HALF: Final = re.compile("[\ud800-\udfff]")  # half a surrogate pair: no text has it
# What a file in another encoding may begin with; UTF-32's mark begins with UTF-16's.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_DAMAGED: Final = (OSError, EOFError, zlib.error)  # what reading raises, gzip's complaints among them

Text = Iterable[str]
"""Consecutive parts of one text."""


class Opened(NamedTuple):
    """disk is the file as it stands there, stream its bytes unpacked"""

    path: Path
    disk: BinaryIO
    stream: BinaryIO


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Whatever goes wrong while it is read is an InputError."""
    try:
        with open(path, "rb") as disk:
            zipped = disk.read(2) == b"\x1f\x8b"
            disk.seek(0)
            yield Opened(path, disk, cast("BinaryIO", gzip.GzipFile(fileobj=disk) if zipped else disk))
    except _DAMAGED as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(
            f"cannot be read: {said}", where=path, hint="is the file whole, and may it be read?"
        ) from error


def refusal(path: Path) -> InputError | None:
    """Why this is no text, by its first bytes; None where it is."""
    try:
        with opened(path) as file:
            _decoded(codecs.getincrementaldecoder("utf-8")(), file.stream.read(CHUNK), 0, path)
    except InputError as error:
        return error
    return None


def sizes(file: Opened) -> Iterator[int]:
    """About how many bytes each document has, as `documents` gives them. Raises InputError, but finds few faults."""
    kind = _kind(file)
    if kind == "list":
        yield from (len(json.dumps(record)) for _, record in _listed(file))
    elif kind == "lines":
        yield from (len(line) for _, _, line in _filled(file))
    elif file.stream is file.disk:
        yield file.disk.seek(0, 2)
    else:
        yield sum(map(len, iter(lambda: file.stream.read(CHUNK), b"")))


def documents(file: Opened) -> Iterator[Sequence[Text]]:
    """The texts of each document. A text file has one with one text; each record of JSON is a document, of which
    one without text has none.

    Raises InputError: binary, not UTF-8, JSON that is broken, or a line or list too long.
    """
    kind = _kind(file)
    if kind == "text":
        yield [_parts(file)]
        return
    for name, record in _listed(file) if kind == "list" else _lines(file):
        texts = [text for text in _texts(record, []) if text]
        if any(not text.isascii() and _HALF.search(text) for text in texts):
            raise InputError(
                f"{name} holds half a character (a lone surrogate)", where=file.path, hint="escape it as a pair"
            )
        yield [[text] for text in texts] if any(map(str.strip, texts)) else []


def _kind(file: Opened) -> str:
    """ "lines" (JSONL), "list" (one JSON list) or "text": a .json whose first record has no text is code."""
    name = file.path.name.lower().removesuffix(".gz")
    if name.endswith((".jsonl", ".ndjson")):
        return "lines"
    if not name.endswith(".json"):
        return "text"
    head = file.stream.read(FIRST_LINE).removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace").lstrip()
    file.stream.seek(0)
    is_list = head.startswith("[")
    try:
        first = head[1:].lstrip() if is_list else head.split("\n", 1)[0]
        record = json.JSONDecoder().raw_decode(first)[0] if is_list else json.loads(first)
    except (ValueError, RecursionError):
        return "list" if is_list and len(head) > FIRST_LINE // 4 else "text"  # its first record may be longer
    holds = (is_list or isinstance(record, dict)) and any(map(str.strip, _texts(record, [])))
    return ("list" if is_list else "lines") if holds else "text"


def _parts(file: Opened) -> Iterator[str]:
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    while data := file.stream.read(CHUNK):
        yield _decoded(decoder, data, at, file.path)
        at += len(data)
    yield _decoded(decoder, b"", at, file.path)


def _lines(file: Opened) -> Iterator[tuple[str, Any]]:
    for number, at, line in _filled(file):
        yield f"line {number}", _json(_whole(line, at, file.path), f"line {number}", file.path)


def _filled(file: Opened) -> Iterator[tuple[int, int, bytes]]:
    """(number, bytes before it, line) of each line that is not blank."""
    at = 0
    for number, line in enumerate(iter(lambda: file.stream.readline(LARGEST_LINE + 1), b""), 1):
        if len(line) > LARGEST_LINE:
            raise InputError(
                f"line {number} has more than {LARGEST_LINE >> 20} MB, and a record is read whole",
                where=file.path,
                hint="a record is one document: split it into several, or give its text as a .txt",
            )
        if line.strip():
            yield number, at, line
        at += len(line)


def _listed(file: Opened) -> Iterator[tuple[str, Any]]:
    data = file.stream.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise InputError(
            f"a JSON list is read whole, and this one has more than {LARGEST_JSON >> 20} MB",
            where=file.path,
            hint=f"make it JSONL: jq -c '.[]' {typed(file.path)} > corpus.jsonl",
        )
    for number, record in enumerate(_json(_whole(data, 0, file.path), "the file", file.path), 1):
        yield f"entry {number}", record


def _whole(data: bytes, at: int, path: Path) -> str:
    if at and b"\0" not in data:
        with suppress(UnicodeDecodeError):  # said below
            return data.decode()
    decoder = codecs.getincrementaldecoder("utf-8")()
    return _decoded(decoder, data, at, path) + _decoded(decoder, b"", at + len(data), path)


def _decoded(decoder: codecs.IncrementalDecoder, data: bytes, at: int, path: Path) -> str:
    """What `decoder` makes of `data`, which stands `at` bytes into the file; none is the file's end."""
    for mark, name in _MARKS if at == 0 else ():
        if data.startswith(mark):
            hint = f"iconv -f {name} -t UTF-8 {typed(path)} > corpus.txt"
            raise InputError(f"this is {name}, not UTF-8", where=path, hint=hint)
    if b"\0" in data:
        raise InputError(f"binary, not text: byte {at + data.index(0)} is zero", where=path, hint=HINT)
    pending = len(decoder.getstate()[0])
    try:
        text = decoder.decode(data, not data)
    except UnicodeDecodeError as error:
        hint = f"say what it is: iconv -f ENCODING -t UTF-8 {typed(path)} > corpus.txt"
        raise InputError(f"not UTF-8: byte {at - pending + error.start}", where=path, hint=hint) from error
    return text.removeprefix("\ufeff") if at == 0 else text


def _json(text: str, what: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} is not JSON ({error})", where=path, hint=HINT) from error


def _texts(value: Any, found: list[str]) -> list[str]:
    """Every text of a record, in its order."""
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, list):
        for one in value:
            _texts(one, found)
    elif isinstance(value, dict):
        for field, one in value.items():
            if field in FIELDS:
                _texts(one, found)
    return found
