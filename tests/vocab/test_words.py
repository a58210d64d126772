"""Cutting changes no token: against the tokenizers library encoding the same text whole."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from collections import Counter

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from mtptools.decoder.tokenizer import KINDS
from mtptools.vocab.encoder import Encoder
from mtptools.vocab.seen import LONGEST, Seen
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


@pytest.mark.parametrize("kind", ["deepseek-v3", "joyai-llm"])
def test_kana_that_is_no_letter(kind: str) -> None:
    """DeepSeek's expressions take it for kana, not for punctuation that leads letters."""
    backend = tokenizer(kind)
    words = Words.of(backend.to_str())
    assert words is not None
    for mark in "\u3099\u309b\u309c\u30a0\u30fb\u30fc":
        for text in (f"{mark}'s", f"{mark}'LL", f"a{mark}(the", f"カ{mark}(the {mark} の{mark}\n{mark}1"):
            assert of_words(backend, words, [text]) == of_texts(backend, [text]), ascii(text)


def released() -> Tokenizer:
    """As DeepSeek's tokenizer.json: no normalizer by an empty sequence, line ends in the expressions as they are,
    added tokens of which some are matched in the second pass.
    """
    tree = json.loads(tokenizer("deepseek-v3").to_str())
    tree["normalizer"] = {"type": "Sequence", "normalizers": []}
    for step in tree["pre_tokenizer"]["pretokenizers"][:-1]:
        step["pattern"]["Regex"] = step["pattern"]["Regex"].replace(r"\r", "\r").replace(r"\n", "\n")
    backend = Tokenizer.from_str(json.dumps(tree))
    for second in (False, True):
        own = ["<｜User｜>", "<｜", "User｜><｜", "<thi"] if second else ["｜>", "<｜fim▁hole｜>", "er｜", "<｜end▁of"]
        backend.add_tokens([AddedToken(token, normalized=second) for token in own])
    return backend


def test_a_released_tokenizer() -> None:
    backend = released()
    assert '"\\r' not in backend.to_str()
    assert "[^\\r\\n\\\\p{L}" in backend.to_str()  # CR and LF, no backslashes
    words = Words.of(backend.to_str())
    assert words is not None
    assert differs(backend, words, 2) is None
    chance = random.Random(3)
    marks = [
        "<｜",
        "User",
        "｜",
        "｜>",
        "<",
        ">",
        "fim▁hole",
        "<｜User｜>",
        "<｜fim▁hole｜>",
        "<think>",
        " ",
        "a",
        "天",
        "end▁of",
    ]
    for _ in range(1500):
        text = "".join(chance.choices(marks, k=8))
        assert of_words(backend, words, [text]) == of_texts(backend, [text]), ascii(text)


def test_added_tokens_that_no_text_has() -> None:
    """An empty one is never matched, and one with END must not be found where two texts are joined."""
    tree = json.loads(tokenizer("qwen2").to_str())
    for token in ("", f"a{END}b"):
        number = max(one["id"] for one in tree["added_tokens"]) + 1
        tree["added_tokens"].append(tree["added_tokens"][0] | {"id": number, "content": token})
    backend = Tokenizer.from_str(json.dumps(tree))
    words = Words.of(json.dumps(tree))
    assert words is not None
    given = ["a fox a", "b the a", "b"]
    assert of_words(backend, words, given) == of_texts(backend, given)


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
        words.crossings.pairs[:] = words.crossings.left[:] = words.crossings.right[:] = False
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
    huge = "x" * (LONGEST + 1)
    for side, text in enumerate(("a bb ccccccc dddddddd eeeeeeee fffffffff", f"a<think> bb ggggggggg {huge}")):
        assert [word.strip() for word in seen.add(words.cut([text]), side)] == [huge] * side
    found = {one.word: (one.train, one.held) for one in seen}
    assert found[" bb"] == found["a"] == (1, 1)
    assert found[" dddddddd"] == found[" ccccccc"] == found[" fffffffff"] == (1, 0)
    assert found["<think>"] == found[" ggggggggg"] == (0, 1)
    assert len(found) == 8


def test_what_seen_takes() -> None:
    """It tells no less than it takes."""
    words = Words.of(tokenizer("qwen2").to_str())
    assert words is not None
    chance = random.Random(1)
    for letters in (6, 30, 300):
        text = " ".join("".join(chance.choices("abcdefgh", k=letters)) for _ in range(20_000))
        tracemalloc.start()
        seen = Seen()
        seen.add(words.cut([text]), 0)
        list(itertools.islice(seen, 1))
        taken = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert taken <= 1.2 * seen.nbytes + (1 << 17), letters
