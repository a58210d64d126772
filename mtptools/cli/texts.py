"""Text files that a verb reads, with every way one can be wrong."""

from __future__ import annotations

from pathlib import Path

from mtptools.errors import InputError

__all__ = ["read_text"]


def read_text(path: Path, hint: str) -> str:
    """A file of UTF-8 text. Raises InputError: it cannot be read, is no text, or is empty."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the text: {error.strerror or error}", where=path, hint=hint) from error
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=path, hint=hint) from error
    if "\0" in text:
        raise InputError("not text: it holds zero bytes", where=path, hint=hint)
    if not text.strip():
        raise InputError("the text is empty", where=path, hint=hint)
    return text
