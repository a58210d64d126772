"""What a chat template writes by itself: its text, and the strings in its expressions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["literals"]

_OPEN: Final = re.compile(r"\{\{|\{%|\{#")
_CLOSE: Final = {"{{": re.compile(r"\}\}"), "{%": re.compile(r"%\}"), "{#": re.compile(r"#\}")}
_STRING: Final = re.compile(r"'((?:\\.|[^'\\])*)'" + r'|"((?:\\.|[^"\\])*)"', re.DOTALL)


def literals(template: str) -> list[str]:
    """Every text between tags and every string inside of them (Jinja), each once, as written and without white space at
    its ends; comments apart. A template that is damaged gives what can be told.
    """
    out = [form for text in _found(template) for form in (text, text.strip())]
    return [text for text in dict.fromkeys(out) if text]


def _found(template: str) -> Iterator[str]:
    at = 0
    while tag := _OPEN.search(template, at):
        yield template[at : tag.start()]
        close = _CLOSE[tag[0]]
        at = tag.end()
        while True:
            end = close.search(template, at)
            string = None if tag[0] == "{#" else _STRING.search(template, at)
            if string is None or (end is not None and end.start() < string.start()):
                break
            yield _unescaped(string[1] if string[1] is not None else string[2])
            at = string.end()  # a tag does not end inside of a string
        if end is None:
            return
        at = end.end()
    yield template[at:]


def _unescaped(body: str) -> str:
    try:
        return body.encode("ascii", "backslashreplace").decode("unicode-escape")
    except UnicodeDecodeError:
        return body
