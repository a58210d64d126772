"""Corpora as a stream of texts with bounded memory, and which part of them is held out.

What is held out must be text that the counted part does not go on with: neighbouring lines share names, subjects and
whole phrases, and single lines held out would say that nearly any list covers them. Of every ten documents one is held
out whole; where they are few or very unequal, of every ten blocks of consecutive text one. Which of the ten is told by
a hash of their number, since sorted folders repeat themselves. A piece is encoded by itself and belongs to one side: no
token stands half in each. One that stood word for word in the counted part before (a system prompt) is counted, too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from mtptools.errors import InputError
from mtptools.vocab.textfiles import HINT, Text, documents, opened, refusal, sizes

__all__ = ["BLOCK", "EVERY", "LEAST_DOCUMENTS", "Files", "Left", "Piece", "find", "pieces"]

EVERY: Final = 10
"""One of so many documents or blocks in a row is held out."""
LEAST_DOCUMENTS: Final = 20
"""With fewer, blocks are held out."""
BLOCK: Final = 256
"""Characters of the smallest block."""
BLOCKS: Final = 100  # about as many, where blocks are held out
PIECE: Final = 1 << 16  # characters
LINE: Final = 4  # pieces: a longer line is cut
LARGEST: Final = 0.1  # share of all that one document may have, where whole ones are held out
SHARES: Final = (0.03, 0.3)  # that are held out then
REPEATS: Final = 64  # characters of a piece that is looked for in the counted part; shorter ones recur in any text
SLOTS: Final = 1 << 21  # hashes of the counted part, 16 MB


class Piece(NamedTuple):
    """Consecutive text of one document, to be encoded by itself.

    held    it belongs to the held-out part
    begins  it is the first piece of a document
    read    bytes of the files read up to here (compressed ones, of .gz)
    """

    text: str
    held: bool
    begins: bool
    read: int


@dataclass(frozen=True)
class Files:
    """paths    in the order they are read, each file once
    named    those that were named one by one: each must be text
    skipped  files found in folders that are not text, and what they are
    nbytes   of `paths`, on disk
    """

    paths: tuple[Path, ...]
    named: frozenset[Path]
    skipped: dict[Path, str]
    nbytes: int


@dataclass
class Left:
    """What was left, told while a corpus is read.

    skipped   files of folders that turned out to be no text, and why; the text before that counts
    textless  records of JSON without text
    repeated  characters that were to be held out and had stood in the counted part
    """

    skipped: dict[Path, str] = field(default_factory=dict)
    textless: int = 0
    repeated: int = 0


def find(paths: Sequence[Path]) -> Files:
    """Files that `paths` (files, or folders with all that is below) name; of a folder, no hidden and no empty ones.

    Raises InputError: nothing there, or no text in a folder.
    """
    found: dict[tuple[int, int], Path] = {}  # by what the file is: relative, absolute and linked names are one
    named: set[tuple[int, int]] = set()
    skipped: dict[Path, str] = {}
    for path in paths:
        if path.is_file():
            found.setdefault(_identity(path), path)
            named.add(_identity(path))
        elif path.is_dir():
            inside = [one for one in sorted(path.rglob("*"), key=str) if _counts(one, path)]
            refused = {one: error for one in inside if (error := refusal(one))}
            if len(refused) == len(inside):
                first = next(iter(refused.values()), None)
                if first is None:
                    raise InputError("no file in this folder holds text", where=path, hint=HINT)
                raise InputError(f"none of {len(inside)} files is text: {first}", where=path, hint=first.hint)
            for one in inside:
                if one not in refused:
                    found.setdefault(_identity(one), one)
            skipped |= {one: error.what for one, error in refused.items()}
        else:
            raise InputError("no such file or folder of text", where=path, hint=HINT)
    unique = tuple(found.values())
    return Files(unique, frozenset(found[one] for one in named), skipped, sum(path.stat().st_size for path in unique))


def pieces(files: Files, left: Left | None = None) -> Iterator[Piece]:
    """All text of `files`, in order.

    A text file is one document, as is each record of JSON; each text of a record is cut by itself. Texts are cut at
    line ends into pieces of about 64 KB, of little text smaller (a line of four such at a space, or between two
    characters).
    Raises InputError for files that were named: no text, binary, not UTF-8, JSON that is broken. Those of folders are
    read up to there and told in `left`.
    """
    left = Left() if left is None else left
    split, before = _Split(files), 0
    for path in files.paths:
        try:
            yield from _pieces(path, split, left, before, must=path in files.named)
        except InputError as error:
            if path in files.named:
                raise
            left.skipped[path] = error.what
        before += path.stat().st_size


def _pieces(path: Path, split: _Split, left: Left, before: int, *, must: bool) -> Iterator[Piece]:
    """must  raise InputError where there is no text"""
    empty, records, textless = True, 0, 0
    with opened(path) as file:
        for texts in documents(file):
            begins = True
            split.begin()
            records, textless = records + 1, textless + (not texts)
            for piece in (piece for text in texts for piece in _cut(text, split.size)):
                empty = empty and piece.isspace()
                held, repeated = split.holds(piece)
                left.repeated += len(piece) * repeated
                yield Piece(piece, held, begins, before + file.disk.tell())
                begins = False
    if empty and (must or textless):
        what = f"none of {records} records holds text" if textless else "there is no text in this file"
        raise InputError(what, where=path, hint=HINT)
    left.textless += textless


class _Split:
    """Which pieces are held out. Blocks are filled by pieces, so that short texts come together in one.

    size  characters of a piece
    """

    def __init__(self, files: Files) -> None:
        total, self.whole = _planned(files)
        self.size = PIECE if self.whole else min(PIECE, max(BLOCK, total // BLOCKS))
        self.number = -1 if self.whole else 0
        self.filled = 0
        self.counted = np.zeros(SLOTS, np.uint64)  # hashes of pieces, each in its slot; the last one stays

    def begin(self) -> None:
        """A document begins."""
        self.number += self.whole

    def holds(self, piece: str) -> tuple[bool, bool]:
        """(is this piece held out, is it not because it stood in the counted part)"""
        if not self.whole and 2 * self.filled >= self.size:  # a piece is somewhat shorter: it ends with a line
            self.number, self.filled = self.number + 1, 0
        self.filled += len(piece)
        held, stripped = _is_held(self.number), piece.strip()
        if len(stripped) < REPEATS:
            return held, False
        key = int.from_bytes(blake2b(stripped.encode(), digest_size=8).digest(), "little")
        if not held:
            self.counted[key % SLOTS] = key
        repeated = held and int(self.counted[key % SLOTS]) == key
        return held and not repeated, repeated


def _is_held(number: int) -> bool:
    group, place = divmod(number, EVERY)
    return place == zlib.crc32(group.to_bytes(8, "little")) % EVERY


def _planned(files: Files) -> tuple[int, bool]:
    """(about the bytes of text, are whole documents held out), by reading JSON and what is compressed once before."""
    count = total = held = largest = 0
    for path in files.paths:
        try:
            with opened(path) as file:
                for nbytes in sizes(file):
                    held += nbytes * _is_held(count)
                    count, total, largest = count + 1, total + nbytes, max(largest, nbytes)
        except InputError:
            continue  # said when it is read
    low, high = SHARES
    even = largest <= LARGEST * total and low * total <= held <= high * total
    return total, count >= LEAST_DOCUMENTS and even


def _identity(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _counts(path: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.is_file() and path.stat().st_size > 0


def _cut(text: Text, size: int) -> Iterator[str]:
    """Pieces of `size` characters and less, or up to the end of a longer line."""
    held = ""
    for part in text:
        held += part
        start = 0
        while len(held) - start > size and (end := _end(held, start, size)):
            yield held[start:end]
            start = end
        held = held[start:]
    while held:
        end = (_end(held, 0, size, last=True) if len(held) > size else 0) or len(held)
        yield held[:end]
        held = held[end:]


def _end(text: str, start: int, size: int, *, last: bool = False) -> int:
    """Where the piece of `text` that begins at `start` ends, or 0: its first line goes on to the end.

    last  nothing comes behind `text`
    """
    full = start + size
    end = first = text.rfind("\n", start, full) + 1
    # Before a line that begins with a word: tokens of white space may span lines.
    while end > start and text[end].isspace():
        end = text.rfind("\n", start, end - 1) + 1
    if end > start or first > start:
        return end if end > start else first
    longest = start + LINE * size
    if end := text.find("\n", full, longest) + 1:
        return end
    if len(text) < (full + size if last else longest):
        return 0
    space = text.find(" ", full, longest)
    return space if space > start else full
