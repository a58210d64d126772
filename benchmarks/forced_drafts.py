"""Drafts whose acceptance is chosen: the text's own next tokens, a share of them made wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["Forced"]


class Forced:
    """For `decode_speculative`: its `corrupt` and, so that the place in the text is known, its `on_tokens`.

    text   what plain decoding emits
    rate   chance that a draft is right, each by itself
    vocab  tokens to be wrong with
    """

    def __init__(self, text: Sequence[int], rate: float, vocab: int, seed: int = 0) -> None:
        self.text, self.rate, self.vocab = list(text), rate, vocab
        self.emitted = 0
        self.random = np.random.default_rng(seed)

    def on_tokens(self, tokens: Sequence[int]) -> None:
        self.emitted += len(tokens)

    def corrupt(self, drafts: Sequence[int], step: int) -> list[int]:
        """As many drafts as the head made."""
        right = self.text[self.emitted : self.emitted + len(drafts)]
        keep = self.random.random(len(right)) < self.rate
        return [token if kept else (token + 1) % self.vocab for token, kept in zip(right, keep, strict=True)]
