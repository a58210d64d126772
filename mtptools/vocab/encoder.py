"""Texts to token ids by the tokenizers library, and words by its model alone where that is the same."""

from __future__ import annotations

from collections.abc import Sequence

from mtptools.errors import TokenizerError
from mtptools.vocab.bytelevel import CHARACTERS
from mtptools.vocab.words import Words

__all__ = ["Encoder"]


class _Shown(dict[str, str]):
    """Character -> the characters that stand for its bytes in byte-level BPE."""

    def __missing__(self, char: str) -> str:
        shown = self[char] = "".join(CHARACTERS[byte] for byte in char.encode())
        return shown


class Encoder:
    """Raises TokenizerError when the tokenizer cannot be read."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer

        try:
            self.backend = Tokenizer.from_str(tokenizer_json)
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(
                f"the tokenizer cannot be read: {error}", hint="download tokenizer.json again from the model's release"
            ) from error
        self.backend.no_truncation()
        self.backend.no_padding()
        self.model = self.backend.model
        self.shown = _Shown()

    def texts(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [one.ids for one in self.backend.encode_batch_fast(texts, add_special_tokens=False)]

    def words(self, words: Sequence[str], how: Words) -> list[list[int]]:
        """As `texts`, of the words that `how` cut."""
        one, added, shown, tokenize = how.one.fullmatch, how.added, self.shown, self.model.tokenize
        out = [
            [token.id for token in tokenize("".join([shown[char] for char in word]))]
            if one(word) and word not in added
            else None
            for word in words
        ]
        rest = iter(self.texts([word for word, ids in zip(words, out, strict=True) if ids is None]))
        return [next(rest) if ids is None else ids for ids in out]
