"""Texts that tell pre-tokenizers apart, and a vocabulary in which every cut shows."""

from __future__ import annotations

import json
import random
from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ATOMS = (
    *("the", " quick", "I'll", "WE'RE", "it's", "'D", "don't", "naïve", "ß", "İ", "Привет", "é", "_", "/path/to"),
    *(" 1", "12345", "3.14", "x=1;", "١٢٣", "½", "²", "{\n", "}\n\n", "()", "...", "?!", "#!", "$", "^", "`", "~|"),
    *("\n", " ", "  ", "   \t", "\r\n", " \n ", "\u00a0", "\u3000", "\u200b", "日本語", "漢字", "かな", "カタカナ"),
    *("한국어", "🎉", "👨\u200d👩\u200d👧", "。", "，", "「", "」", "\u3040", "龥", "龦"),
    *("<|im_start|>", "<|endoftext|>"),
)
MARKS = ("e\u0301", "नमस्ते")
"""Combining marks: llama.cpp does not compose them, and kimi-k2 there cuts words at them."""
CASES = ("camelCase", "HTTPServer", "ZZtop", "々", "〇", "ー")
"""Where kimi-k2 in llama.cpp is not the release: capitals inside words, and what it takes for Han."""


def texts(count: int, seed: int, atoms: tuple[str, ...] = (*ATOMS, *MARKS, *CASES)) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(atoms, k=rng.randint(1, 14))) for _ in range(count)]


@cache
def unsplit(size: int) -> tuple[list[str], list[str]]:
    """Tokens and merges of a BPE trained on whole texts: a cut that is missing or too many changes the ids.

    A fifth of the merges are left out, so that some tokens are reached only where merges are ignored.
    """
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=12,
    )
    tok.train_from_iterator(texts(4000, 1), trainer)
    model = json.loads(tok.to_str())["model"]
    merges = [" ".join(pair) for number, pair in enumerate(model["merges"]) if number % 5]
    return sorted(model["vocab"], key=model["vocab"].get), merges
