"""Small tokenizers of every kind, trained here, and texts that are made to trip whatever cuts them."""

from __future__ import annotations

import random
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mtptools.decoder.tokenizer import KINDS

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<think>", "<|im"]
SAMPLE = [
    "The quick brown fox's den isn't there; they'll see 12,345 of it (or not).\n\n",
    "    def fox(self):\n        return None\n",
    "今天天气很好，我们去公园。今天的天气不好，我们在家里看书。中文没有空格，词和词连在一起。\n",
    "今日は天気がいいです。カタカナとひらがなと漢字。これはテストです、テスト。\n",
    "ภาษาไทยไม่มีช่องว่าง วันนี้อากาศดีมาก\nEl niño comió piñas; ¿cómo está? Mañana será otro día.\n",
    "한국어는 띄어쓰기가 있습니다. हिन्दी में लिखा है।\n",
] * 3
LATIN = "a b the The fox's 's 'S 'll 'LL 't ſ é É e\u0301 \u0301 ñ ß K \u212a 1 12 3456 ２ ² Ⅷ"
MARKS = ". , ( ) (( '( (' ' '' \" _ - -- ; \u037e ， 。 、 「 」 😀 🇪🇸"
OTHERS = (
    "今天 天气 很好 我们 今 天 の は テスト カ\u3099 ゙ か ภาษา ไทย ไม่ ่ 한국 \u1112\u1161\u11ab \u1161 हिन्दी ् \U00020000"
)
KANA = "\u30a0 \u309b \u309c \u30fb \u30fc"  # that is no letter, but for the last
ADDED = "<|im_start|> <|im_ start|> <|im <| |> <think> think> < > <|endoftext|>"
PARTS = f"{LATIN} {MARKS} {OTHERS} {KANA} {ADDED}".split(" ")
SPACES = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    "\t\t",
    " \n",
    "\n ",
    *"\u3000\xa0\x85\x1c\u200b",
    *[""] * 6,
]


@cache
def tokenizer(kind: str, ignore_merges: bool | None = None) -> Tokenizer:
    """Of a kind of GGUF, or `bytes`: the ByteLevel pre-tokenizer with its own expression."""
    built = Tokenizer(models.BPE())
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "bytes")
    splits = [] if kind == "bytes" else [pre_tokenizers.Split(Regex(one), "isolated") for one in KINDS[kind].splits]
    built.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytewise]) if splits else bytewise
    if kind != "bytes" and KINDS[kind].composes:
        built.normalizer = normalizers.NFC()
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    built.train_from_iterator(
        # On texts like those that are tried, too: what is never one token would not show where it was cut.
        SAMPLE + texts(77, 200),
        trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False, min_frequency=2),
    )
    built.model.ignore_merges = bool(KINDS[kind].ignore_merges if kind != "bytes" else False)
    if ignore_merges is not None:
        built.model.ignore_merges = ignore_merges
    built.add_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return built


def texts(seed: int, count: int, length: int = 30) -> list[str]:
    chance = random.Random(seed)

    def part() -> str:
        return chance.choice(PARTS) + chance.choice(SPACES) + chance.choice(SPACES)

    return ["".join(part() for _ in range(length)) for _ in range(count)]
