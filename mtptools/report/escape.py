"""Text of strangers (names, tokens, paths) made safe to show in HTML and in Markdown."""

from __future__ import annotations

import html
import re
from typing import Final

__all__ = ["html_text", "markdown_code", "markdown_text", "plain", "visible"]

# Controls, halves of characters, marks that turn the reading direction or are not seen, and noncharacters.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufdd0-\ufdef\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_MARKDOWN: Final = re.compile(r"([\\`*_\[\]<>|~#@$&!])")
_LONG: Final = 2000


def plain(text: object, most: int = _LONG) -> str:
    """The text with what cannot be seen made visible, cut where it is very long."""
    told = str(text)
    told = told if len(told) <= most else told[: most - 1] + "…"
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", told)


def visible(text: object) -> str:
    """As `plain`, with line breaks and tabs shown as signs: a text of tokens on one line."""
    return plain(text).replace("\n", "⏎").replace("\t", "⇥")


def html_text(text: object) -> str:
    """For an element's content or a quoted attribute."""
    return html.escape(plain(text), quote=True)


def markdown_text(text: object) -> str:
    """For a line or a table's cell of GitHub Markdown: no markup, no link, no mention, no new line."""
    told = " ".join(plain(text).split())
    return _MARKDOWN.sub(r"\\\1", told).replace(r"\@", "@<!-- -->")


def markdown_code(text: object) -> str:
    """A code span of one line, whatever backquotes are in it; in a table, too."""
    told = visible(text).replace("|", "⏐") or " "
    fence = "`" * (max((len(run) for run in re.findall("`+", told)), default=0) + 1)
    pad = " " if told[0] in "` " or told[-1] in "` " else ""
    return f"{fence}{pad}{told}{pad}{fence}"
