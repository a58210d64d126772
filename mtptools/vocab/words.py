"""Text cut where its tokens cannot reach across, so that each distinct word is encoded once.

Exact, not near: `Words.of` gives None for a tokenizer of which that is not known. Three things keep a token on one side
of a cut, and all are told by the characters beside it:

- the expression the tokenizer splits by always splits there, whatever stands around (`SPLITS`), and goes on behind the
  cut as it would at the start of a text
- in scripts without spaces, no token of the vocabulary holds the two side by side (`_crossings`); within a word merges
  work on neighbours only, so both sides come out as they would alone
- composition (NFC) joins no character of one side to the other's: marks and Hangul jamo never stand behind a cut

Characters are classed by Unicode 3.2, and only where today's Unicode agrees: no library differs on these. Nor are marks
among kana classed, which DeepSeek's expressions take for kana. Next to any other there is no cut.

Added tokens are matched in two passes, as the library does: first those with `normalized: false`, then in what is left
the others, which without a normalizer are matched as they stand.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, groupby, pairwise, product, takewhile
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtptools.vocab.bytelevel import CHARACTERS

__all__ = ["END", "SPLITS", "Cut", "Split", "Words"]

END: Final = "\0"
"""Stands between texts that are cut together; a text that holds one cannot be cut."""
CLASSES: Final = "?LMNRBTPE"
"""? not known, Letter, Mark, Number, line end (R), Blank, Tab, Punctuation and symbols, the End of a text"""
_CATEGORY: Final = {"L": "L", "M": "M", "N": "N", "P": "P", "S": "P"}  # of Unicode, by its first letter


class Split(NamedTuple):
    """pairs    of classes between which there is always a split
    triples  classes of three neighbours, and how many stand before the split
    leads    classes of which one character makes one word with the letters that follow; never an apostrophe
    ascii    what makes one word is known for ASCII only
    """

    pairs: tuple[str, ...]
    triples: tuple[tuple[str, str, str, int], ...]
    leads: str
    ascii: bool = False


_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?"
_SPACES: Final = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# White space belongs to what follows; runs of letters, digits and punctuation end at each other's start.
_ALWAYS: Final = ("LB", "MB", "NB", "PB", "LT", "MT", "NT", "PT", "LR", "NR", "LN", "LP", "NL", "NP", "PN")
_LINES: Final = (*_ALWAYS, "RL", "RN", "RP")  # with `\s*[\r\n]+`; without it, how white space splits depends on more
_DIGITS: Final = (*_LINES, "NN")  # with `\p{N}`: each by itself
# Two and more marks of punctuation, or a blank and one, are a word without the letters that follow.
_MARKS: Final = ("PB", "P", "L", 2)
# The last blank of several stays with what follows, by `\s+(?!\S)`; not where an expression before cut that off.
_BLANKS: Final = ("RBT", "BT", "LNP", 1)
_BOTH: Final = (_MARKS, _BLANKS)
SPLITS: Final = {
    (_WORDS + r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+" + _SPACES,): Split(_DIGITS, _BOTH, "BTP"),
    (_WORDS + r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _SPACES,): Split(_DIGITS, _BOTH, "BTP"),
    (_WORDS + r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _SPACES,): Split(_LINES, _BOTH, "BTP"),
    (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
        + _SPACES,
    ): Split(_LINES, (_MARKS,), "B", ascii=True),
    (_GPT2,): Split(_ALWAYS, _BOTH, "B"),
}
"""By the expressions of a tokenizer.json, in order."""

# Thai and Lao, Myanmar, Khmer, kana, Han: words are not set apart. All have three bytes in UTF-8.
_DENSE: Final = ((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x3400, 0x9FFF))
_LEADS: Final = re.compile("[\xe0-\xef]")  # bytes that begin such a character; in a token they stand for themselves
_CODES: Final = 0x110000
_BITS: Final = 22  # of a hash of two characters
_KANA: Final = range(0x3040, 0x3100)


@lru_cache(maxsize=1)
def _classes() -> NDArray[np.uint8]:
    """[code point] its index in CLASSES."""
    out = np.zeros(_CODES, np.uint8)
    early = unicodedata.ucd_3_2_0
    for code in range(0x10000):
        char = chr(code)
        category = early.category(char)
        name = _CATEGORY.get(category[0])
        if 0x1100 <= code <= 0x11FF or (code in _KANA and name != "L"):  # Hangul jamo; kana's marks
            continue
        if name and category == unicodedata.category(char) and unicodedata.normalize("NFC", char) == char:
            out[code] = CLASSES.index(name)
    for char, name in (("\n", "R"), ("\r", "R"), (" ", "B"), ("\t", "T"), (END, "E")):
        out[ord(char)] = CLASSES.index(name)
    return out


@lru_cache(maxsize=1)
def _dense() -> NDArray[np.bool_]:
    """[code point] is it a letter of a script without spaces?"""
    out = np.zeros(_CODES, np.bool_)
    for first, last in _DENSE:
        out[first : last + 1] = True
    out &= _classes() == CLASSES.index("L")
    return out


@lru_cache
def _ranges(kind: str) -> str:
    """All characters of a class, as ranges for a regular expression."""
    codes = np.flatnonzero(_classes() == CLASSES.index(kind))
    runs = np.split(codes, np.flatnonzero(np.diff(codes) != 1) + 1)
    return "".join(f"{re.escape(chr(run[0]))}-{re.escape(chr(run[-1]))}" for run in runs)


class Cut(NamedTuple):
    """Words as ranges of bytes.

    data    UTF-8
    starts  [n] of each word, in `data`
    ends    [n]
    added   tokens that are matched whole, which are not in `data`
    """

    data: bytes
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    added: list[str]

    def ranges(self, which: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """(start, end) of the words that `which` [n] marks."""
        return zip(self.starts[which].tolist(), self.ends[which].tolist(), strict=True)


class Words:
    """How the texts of one tokenizer are cut.

    added    the tokens that are matched whole
    one      matches words that neither the expressions nor composition change: the model alone encodes them
    """

    def __init__(self, split: Split, added: Sequence[Sequence[str]], vocabulary: Sequence[str] | None) -> None:
        """added       those of each pass
        vocabulary  None: words are not cut inside
        """
        count = len(CLASSES)
        self.table = np.zeros(count * count, np.bool_)
        for pair in (*split.pairs, *(pair for kind in CLASSES for pair in (f"E{kind}", f"{kind}E"))):
            self.table[CLASSES.index(pair[0]) * count + CLASSES.index(pair[1])] = True
        self.triples = np.zeros(count**3, np.uint8)
        for *kinds, before in split.triples:
            for first, second, third in product(*kinds):
                self.triples[(CLASSES.index(first) * count + CLASSES.index(second)) * count + CLASSES.index(third)] = (
                    before
                )
        self.added = frozenset(chain.from_iterable(added))
        self.find_added = [re.compile(_any_of(some)) for some in added if some]
        letters, marks = ("A-Za-z", "!-/:-@[-`{-~") if split.ascii else (_ranges("L"), _ranges("P"))
        leads = "".join(map(_ranges, split.leads))
        self.one = re.compile(f"(?!')[{leads}]?[{letters}]+| ?[{marks}]+")
        self.crossings = None if vocabulary is None else _crossings(vocabulary)

    @classmethod
    def of(cls, tokenizer_json: str) -> Words | None:
        """None where cutting is not known to be exact for this tokenizer. Not checked: whether it can be loaded."""
        try:
            return cls._of(json.loads(tokenizer_json))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None  # of another shape

    @classmethod
    def _of(cls, tree: dict[str, Any]) -> Words | None:
        model = tree["model"]
        # An empty one is never matched, and one that holds END not in a text that is cut.
        added = [one for one in tree["added_tokens"] if one["content"] and END not in one["content"]]
        normalizers = _steps(tree.get("normalizer"), "normalizers")
        split = SPLITS.get(_expressions(tree.get("pre_tokenizer")))
        if (
            split is None
            or model.get("type") != "BPE"
            or any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
            or normalizers not in ([], [{"type": "NFC"}])
            # Else where they are matched depends on what stands around them.
            or any(one.get(key) for one in added for key in ("single_word", "lstrip", "rstrip"))
            or (normalizers and any(_second(one) for one in added))
        ):
            return None
        # With `ignore_merges` a part of a word may be a token that merging does not make.
        inside = None if model.get("ignore_merges") else list(model["vocab"])
        passes = [[one["content"] for one in added if _second(one) is second] for second in (False, True)]
        return cls(split, passes, inside)

    def cut(self, texts: Sequence[str]) -> Cut:
        """The tokens of `texts`, each encoded by itself, are those of the words, each encoded by itself.

        texts  without END
        """
        text, added = END.join(texts), list[str]()
        for find in self.find_added:
            if found := find.findall(text):
                added += found
                text = find.sub(END, text)
        data = text.encode()
        if len(data) == len(text):
            codes: NDArray[Any] = np.frombuffer(data, np.uint8)
        else:
            codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        kinds = _classes()[codes]
        pairs = kinds[:-1] * np.uint8(len(CLASSES)) + kinds[1:]
        cuts = self.table[pairs]
        before = self.triples[pairs[:-1] * np.uint16(len(CLASSES)) + kinds[2:]]
        cuts[:-1] |= before == 1
        cuts[1:] |= before == 2
        if self.crossings is not None and len(data) > len(text):
            dense = _dense()[codes]
            both = np.flatnonzero(dense[:-1] & dense[1:])
            cuts[both] = ~self.crossings.of(codes[both], codes[both + 1])
        at = np.concatenate([[0], np.flatnonzero(cuts) + 1, [len(text)]])
        starts, ends = at[:-1], at[1:]
        kept = (kinds[starts[starts < len(text)]] != CLASSES.index("E")).nonzero()[0]
        if len(data) > len(text):
            offset = np.zeros(len(text) + 1, np.int64)
            np.cumsum(1 + (codes > 0x7F) + (codes > 0x7FF).astype(np.uint8) + (codes > 0xFFFF), out=offset[1:])
            starts, ends = offset[starts], offset[ends]
        return Cut(data, starts[kept], ends[kept], added)


class _Crossings(NamedTuple):
    """Which two letters of dense scripts may a token hold, or the end of one and the start of the other?

    pairs  [hash of both]; two pairs with one hash only mean a cut less
    left   [code point] a token may hold it and the start of whatever follows
    right  [code point] a token may hold it and the end of whatever stands before
    """

    pairs: NDArray[np.bool_]
    left: NDArray[np.bool_]
    right: NDArray[np.bool_]

    def of(self, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.bool_]:
        """[n] of letters [n] and those behind them."""
        out: NDArray[np.bool_] = self.pairs[_hash(left, right)] | self.left[left] | self.right[right]
        return out


def _crossings(vocabulary: Sequence[str]) -> _Crossings:
    back = {ord(char): byte for byte, char in enumerate(CHARACTERS)}
    pairs: set[tuple[str, str]] = set()
    first: set[str] = set()  # letters before which a token may have a part of a character
    last: set[str] = set()  # letters behind which it may
    heads: set[bytes] = set()  # starts of characters, in tokens with a part of the one before
    for token in vocabulary:
        if not _LEADS.search(token):
            continue
        try:
            data = token.translate(back).encode("latin-1")
        except UnicodeEncodeError:
            continue  # no text of bytes: merges do not make it
        start, end = _whole_characters(data)
        whole = data[start:end].decode("utf-8", "replace")
        pairs.update(pairwise(whole))
        if whole and start:
            first.add(whole[0])
        if whole and end < len(data):
            last.add(whole[-1])
        if not whole and start:
            heads.add(data[start:])
    letters = set(map(chr, np.flatnonzero(_dense()).tolist()))
    if heads:
        first |= {letter for letter in letters if letter.encode().startswith(tuple(heads))}
    both = np.array([[ord(a), ord(b)] for a, b in pairs if a in letters and b in letters], np.uint32).reshape(-1, 2)
    out = _Crossings(np.zeros(1 << _BITS, np.bool_), *np.zeros((2, _CODES), np.bool_))
    out.pairs[_hash(both[:, 0], both[:, 1])] = True
    out.left[[ord(letter) for letter in last & letters]] = True
    out.right[[ord(letter) for letter in first & letters]] = True
    return out


def _hash(left: Any, right: Any) -> NDArray[np.uint32]:
    out: NDArray[np.uint32] = (left * np.uint32(40503) + right) & np.uint32((1 << _BITS) - 1)
    return out


def _any_of(words: Sequence[str]) -> str:
    """An expression for the longest of these that stands there; what several begin with is looked at once."""
    out = []
    for _, some in groupby(sorted(set(words) - {""}), key=lambda word: word[0]):
        group = list(some)
        alike = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(group[0], group[-1], strict=False))))
        rest = [word[alike:] for word in group]
        out.append(re.escape(group[0][:alike]) + (_any_of(rest) + "?" * ("" in rest) if any(rest) else ""))
    return f"(?:{'|'.join(out)})"


def _second(added: dict[str, Any]) -> bool:
    """Is this added token matched in the second pass?"""
    return bool(added.get("normalized"))


def _steps(node: Any, key: str) -> list[Any]:
    """A normalizer or pre-tokenizer as a list of such that are no sequence."""
    if node is None:
        return []
    return [step for one in node[key] for step in _steps(one, key)] if node.get("type") == "Sequence" else [node]


def _expressions(node: Any) -> tuple[str, ...]:
    """The expressions of a byte-level pre-tokenizer, () where it is another. Line ends are written out in them."""
    *cuts, last = _steps(node, "pretokenizers") or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return ()
    if any(one.get("type") != "Split" or one["behavior"] != "Isolated" or one["invert"] for one in cuts):
        return ()
    found = [one["pattern"]["Regex"].replace("\r", r"\r").replace("\n", r"\n") for one in cuts]
    return tuple([*found, _GPT2] if last.get("use_regex", True) else found)


def _whole_characters(data: bytes) -> tuple[int, int]:
    """Where the first whole character of `data` starts and where the last one ends."""
    start, end = 0, len(data)
    while start < end and data[start] & 0xC0 == 0x80:
        start += 1
    for behind in range(1, min(4, end - start + 1)):
        lead = data[-behind]
        if lead >= 0xC0:
            needs = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return start, end - behind if needs > behind else end
    return start, end
