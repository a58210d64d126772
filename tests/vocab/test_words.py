"""Cutting changes no token: against the tokenizers library encoding the same text whole."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from mtptools.decoder.tokenizer import KINDS
from mtptools.vocab.encoder import Encoder
from mtptools.vocab.seen import Seen
from mtptools.vocab.words import CLASSES, END, Words

from .tokenizers_of_kinds import PARTS, SAMPLE, texts, tokenizer

CUT = [kind for kind in [*KINDS, "bytes"] if kind not in ("kimi-k2", "default")]


def of_words(backend: Tokenizer, words: Words, given: list[str]) -> Counter[int]:
    encoder, seen = Encoder(backend.to_str()), Seen()
    huge = seen.add(words.cut(given), 0)
    found = [*((one.word, one.train) for one in seen), *((word, 1) for word in huge)]
    out: Counter[int] = Counter()
    for (_, times), ids in zip(found, encoder.words([word for word, _ in found], words), strict=True):
        for one in ids:
            out[one] += times
    return out


def of_texts(backend: Tokenizer, given: list[str]) -> Counter[int]:
    return Counter(i for one in backend.encode_batch(given, add_special_tokens=False) for i in one.ids)


def differs(backend: Tokenizer, words: Words, seeds: int) -> str | None:
    """The first text whose tokens do not stay."""
    every = (text.replace(END, "") for seed in range(seeds) for text in texts(seed, 20))
    return next((text for text in every if of_words(backend, words, [text]) != of_texts(backend, [text])), None)


@pytest.mark.parametrize("kind", CUT)
def test_tokens_stay(kind: str) -> None:
    backend = tokenizer(kind)
    words = Words.of(backend.to_str())
    assert words is not None
    assert differs(backend, words, 3) is None


@pytest.mark.parametrize("kind", ["qwen2", "qwen35", "deepseek-v3", "glm4"])
def test_texts_together(kind: str) -> None:
    """Texts that are cut at once do not touch, and real sentences come in few words."""
    backend = tokenizer(kind)
    words = Words.of(backend.to_str())
    assert words is not None
    given = [part for part in PARTS if part] + SAMPLE + texts(9, 20)
    given = [text for text in given if END not in text]
    assert of_words(backend, words, given) == of_texts(backend, given)
    assert len(words.cut(SAMPLE).starts) > 150


def test_part_of_a_word_that_is_a_token() -> None:
    """`ignore_merges` takes a whole word for its token, even one that merges do not make: no cut inside of words."""
    tree = json.loads(tokenizer("qwen2", ignore_merges=True).to_str())
    shown = "".join(tokenizer("qwen2").encode("天公").tokens)
    assert shown not in tree["model"]["vocab"]
    number = max(one["id"] for one in tree["added_tokens"]) + 1
    tree["model"]["vocab"][shown] = number
    backend = Tokenizer.from_str(json.dumps(tree))
    words = Words.of(backend.to_str())
    assert words is not None
    assert of_words(backend, words, ["天公"])[number] == 1
    for text in ("很天公", "天公园", "天公天公", "今天公"):
        assert of_words(backend, words, [text]) == of_texts(backend, [text])
        assert number not in of_texts(backend, [text])


@pytest.mark.parametrize("fault", ["crossings", "PL", "RB", "BL", "NN", "blanks", "marks"])
def test_a_wrong_rule_shows(fault: str) -> None:
    """What these tests could not see, they would not hold."""
    backend = tokenizer("glm4", ignore_merges=False)
    words = Words.of(backend.to_str())
    assert words is not None
    assert words.crossings is not None
    kinds = len(CLASSES)
    if fault == "crossings":
        words.crossings[:] = False
    elif fault == "blanks":  # white space of which the last is no blank: "\n" of " \n(" is not set apart
        for third in "LNP":
            code = (CLASSES.index("B") * kinds + CLASSES.index("R")) * kinds + CLASSES.index(third)
            words.triples[code] = 1
    elif fault == "marks":  # a letter before the mark, which then leads the letters behind
        words.triples[(CLASSES.index("L") * kinds + CLASSES.index("P")) * kinds + CLASSES.index("L")] = 2
    else:
        words.table[CLASSES.index(fault[0]) * kinds + CLASSES.index(fault[1])] = True
    assert differs(backend, words, 6)


def changed(**to: object) -> str:
    return json.dumps(json.loads(tokenizer("qwen2").to_str()) | to)


def with_added(**how: bool) -> str:
    backend = Tokenizer.from_str(tokenizer("qwen2").to_str())
    backend.add_tokens([AddedToken("mine", **({"normalized": False} | how))])
    return str(backend.to_str())


def with_model(**how: object) -> str:
    tree = json.loads(tokenizer("qwen2").to_str())
    tree["model"] |= how
    return json.dumps(tree)


@pytest.mark.parametrize(
    "tree",
    [
        changed(normalizer=json.loads(normalizers.Lowercase().__getstate__())),
        changed(pre_tokenizer=json.loads(pre_tokenizers.ByteLevel(add_prefix_space=True).__getstate__())),
        changed(pre_tokenizer=json.loads(pre_tokenizers.Metaspace().__getstate__())),
        changed(pre_tokenizer=None),
        with_added(lstrip=True),
        with_added(single_word=True),
        with_added(normalized=True),
        with_model(dropout=0.1),
        with_model(type="WordPiece"),
        tokenizer("default").to_str(),
        "{}",
        "[]",
        "not JSON",
    ],
)
def test_not_known_to_be_exact(tree: str) -> None:
    assert Words.of(tree) is None


def test_seen_counts() -> None:
    """Words of up to eight bytes as numbers, longer ones as they are, added tokens apart."""
    words = Words.of(tokenizer("qwen2").to_str())
    assert words is not None
    seen = Seen()
    for text in ("a bb ccccccc dddddddd eeeeeeee fffffffff", "a<think> bb"):
        seen.add(words.cut([text]))
    found = seen.words()
    assert found[" bb"] == found["a"] == 2
    assert found[" dddddddd"] == found[" ccccccc"] == found["<think>"] == 1
    assert found[" fffffffff"] == 1
    assert sum(found.values()) == 9
    assert len(seen) == len(found) - 1  # the added token is held apart
