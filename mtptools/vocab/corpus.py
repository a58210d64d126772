"""Corpora as a stream of texts with bounded memory, and which part of them is held out.

What is held out must be text that the counted part does not go on with: neighbouring lines share names, subjects and
whole phrases, and single lines held out would say that nearly any list covers them. Where there are enough documents
every tenth is held out whole, else every tenth block of consecutive text. A piece is encoded by itself and belongs to
one side: no token stands half in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mtptools.errors import InputError
from mtptools.vocab.textfiles import HINT, Text, documents, is_text, opened, refusal

__all__ = ["BLOCK", "EVERY", "LEAST_DOCUMENTS", "Files", "Piece", "find", "pieces"]

EVERY: Final = 10
"""One of so many documents or blocks is held out, the last."""
LEAST_DOCUMENTS: Final = 20
"""With fewer, blocks are held out."""
BLOCK: Final = 256
"""Characters of the smallest block."""
BLOCKS: Final = 100  # about as many, where blocks are held out
PIECE: Final = 1 << 16  # characters
LINE: Final = 1 << 20  # characters of a line that is not cut


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
    """paths    in the order they are read
    named    those that were named one by one: each must have text
    skipped  files found in folders that are not text, and what they are
    nbytes   of `paths`, on disk
    """

    paths: tuple[Path, ...]
    named: frozenset[Path]
    skipped: dict[Path, str]
    nbytes: int


def find(paths: Sequence[Path]) -> Files:
    """Files that `paths` (files, or folders with all that is below) name; of a folder, no hidden and no empty ones.

    Raises InputError: nothing there, or no text in a folder.
    """
    found: list[Path] = []
    skipped: dict[Path, str] = {}
    for path in paths:
        if path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = [one for one in sorted(path.rglob("*"), key=str) if _counts(one, path)]
            refused = {one: error for one in inside if (error := refusal(one))}
            if len(refused) == len(inside):
                first = next(iter(refused.values()), None)
                if first is None:
                    raise InputError("no file in this folder holds text", where=path, hint=HINT)
                raise InputError(f"none of {len(inside)} files is text: {first}", where=path, hint=first.hint)
            found += [one for one in inside if one not in refused]
            skipped |= {one: error.what for one, error in refused.items()}
        else:
            raise InputError("no such file or folder of text", where=path, hint=HINT)
    unique = tuple(dict.fromkeys(found))
    named = frozenset(path for path in paths if path.is_file())
    return Files(unique, named, skipped, sum(path.stat().st_size for path in unique))


def pieces(files: Files) -> Iterator[Piece]:
    """All text of `files`, in order.

    A text file is one document, as is each record of JSON; each text of a record is cut by itself. Texts are cut at
    line ends into pieces of about 64 KB (a line longer than a megabyte at a space, or between two characters).
    Raises InputError: no text, binary, not UTF-8, or JSON that is broken or has no field with text.
    """
    split, before = _Split(files), 0
    for path in files.paths:
        empty = True
        with opened(path) as file:
            for texts in documents(file):
                begins = True
                for piece in (piece for text in texts for piece in _cut(text, split.size)):
                    empty = empty and piece.isspace()
                    yield Piece(piece, split.holds(piece, begins), begins, before + file.disk.tell())
                    begins = False
        if empty and path in files.named:
            raise InputError("there is no text in this file", where=path, hint=HINT)
        before += path.stat().st_size


class _Split:
    """Which pieces are held out. Blocks are filled by pieces, so that short texts come together in one.

    size  characters of a piece
    """

    def __init__(self, files: Files) -> None:
        self.whole = _has_documents(files)
        self.size = PIECE if self.whole else min(PIECE, max(BLOCK, files.nbytes // BLOCKS))
        self.number = -1 if self.whole else 0
        self.filled = 0

    def holds(self, piece: str, begins: bool) -> bool:
        if self.whole:
            self.number += begins
        elif 2 * self.filled >= self.size:  # a piece is somewhat shorter: it ends with a line
            self.number, self.filled = self.number + 1, 0
        self.filled += len(piece)
        return self.number % EVERY == EVERY - 1


def _has_documents(files: Files) -> bool:
    """Are there enough to hold out whole ones? Reads no further than it must."""
    seen = 0
    for path in files.paths:
        with opened(path) as file:
            for _ in [None] if is_text(file) else documents(file):
                seen += 1
                if seen == LEAST_DOCUMENTS:
                    return True
    return False


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
        end = (_end(held, 0, size) if len(held) > size else 0) or len(held)
        yield held[:end]
        held = held[end:]


def _end(text: str, start: int, size: int) -> int:
    """Where the piece of `text` that begins at `start` ends, or 0: its first line goes on behind `text`."""
    full = start + size
    end = first = text.rfind("\n", start, full) + 1
    # Before a line that begins with a word: tokens of white space may span lines.
    while end > start and text[end].isspace():
        end = text.rfind("\n", start, end - 1) + 1
    if end > start or first > start:
        return end if end > start else first
    longest = start + LINE
    if end := text.find("\n", full, longest) + 1:
        return end
    if len(text) < longest:
        return 0
    space = text.rfind(" ", full, longest)
    return space if space > start else longest
