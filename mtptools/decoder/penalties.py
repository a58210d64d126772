"""Penalties on what the text already holds: tokens (repetition, presence, frequency) and sequences (DRY).

All work on scores [vocab], float64, before any filter, and look at the tokens before the one to be chosen: prompt,
output, and in speculation the drafts in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import UsageError

__all__ = ["BREAKERS", "Dry", "Limit", "Penalties", "breaker_ids", "check"]

Limit = tuple[str, Callable[[float], bool], str, str]
"""(name as typed, does a value hold, what does in words, an example)."""

BREAKERS: Final = ("\n", ":", '"', "*")
"""Texts across which DRY sees no repetition. Source: llama.cpp's default for --dry-sequence-breaker."""

MAX_LOG: Final = 88.7
"""ln of the largest float32: where llama.cpp stops the growth of DRY's penalty."""

_LAST_N: Final = (lambda v: v >= 0, "0 (the whole text) or more", "64")
_PENALTIES: Final[Mapping[str, Limit]] = {
    "repetition": ("repetition-penalty", lambda v: 0 < v < inf, "above 0; 1 is off", "1.1"),
    "presence": ("presence-penalty", lambda v: -inf < v < inf, "a number; 0 is off", "0.5"),
    "frequency": ("frequency-penalty", lambda v: -inf < v < inf, "a number; 0 is off", "0.5"),
    "last_n": ("penalty-range", *_LAST_N),
}
_DRY: Final[Mapping[str, Limit]] = {
    "multiplier": ("dry-multiplier", lambda v: 0 <= v < 1e6, "0 (off) or more", "0.8"),
    "base": ("dry-base", lambda v: 1 <= v < inf, "1 or more", "1.75"),
    "allowed_length": ("dry-allowed-length", lambda v: v >= 1, "1 or more", "2"),
    "last_n": ("dry-range", *_LAST_N),
}


def check(settings: object, limits: Mapping[str, Limit]) -> None:
    """Raises UsageError for the first field of `settings` that is outside its limits; NaN is."""
    for field, (name, holds, allowed, example) in limits.items():
        value = getattr(settings, field)
        if not holds(value):
            raise UsageError(f"{name} {value} is not possible: it is {allowed}", hint=f"--{name} {example}")


def _last(history: Sequence[int], n: int) -> Sequence[int]:
    return history[-n:] if n else history


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of tokens that occur in the last `last_n` ones (0: in the whole text).

    repetition  positive scores are divided by it, others multiplied (CTRL, arXiv:1909.05858, with the sign rule that
                transformers, vLLM and llama.cpp share)
    presence    subtracted once; frequency  subtracted once per occurrence. After repetition, as llama.cpp and vLLM do

    llama.cpp looks back 64 tokens unless told otherwise; vLLM counts presence and frequency in the output alone.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    last_n: int = 0

    def __post_init__(self) -> None:
        check(self, _PENALTIES)

    def __bool__(self) -> bool:
        return (self.repetition, self.presence, self.frequency) != (1, 0, 0)

    def apply(self, scores: NDArray[np.float64], history: Sequence[int]) -> None:
        """Change scores [vocab] in place."""
        if not self or not history:
            return
        tokens, counts = np.unique(np.asarray(_last(history, self.last_n), dtype=np.int64), return_counts=True)
        seen = scores[tokens]
        seen = np.where(seen > 0, seen / self.repetition, seen * self.repetition)
        scores[tokens] = seen - counts * self.frequency - self.presence


@dataclass(frozen=True, slots=True)
class Dry:
    """ "Don't repeat yourself": a token that would make a repeated sequence longer is the less likely the longer it is.

    Where the last n tokens, n at least `allowed_length`, stand earlier in the text, the token that followed them there
    loses multiplier * base ** (n - allowed_length); the longest such n counts. A sequence holds no breaker, and a
    breaker is never penalised. Source: p-e-w's description in text-generation-webui#5677, llama.cpp#9702.

    multiplier      0 is off
    allowed_length  longest repetition that costs nothing, with the new token
    last_n          tokens to look back (0: the whole text; llama.cpp looks back 64 unless told otherwise)
    breakers        token ids, see `breaker_ids`
    """

    multiplier: float = 0.0
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = 0
    breakers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        check(self, _DRY)

    def __bool__(self) -> bool:
        return self.multiplier != 0

    def apply(self, scores: NDArray[np.float64], history: Sequence[int]) -> None:
        """Change scores [vocab] in place. Linear in the tokens looked at."""
        if not self:
            return
        back = _last(history, self.last_n)[::-1]
        limit = next((at for at, token in enumerate(back) if token in self.breakers), len(back))
        if limit < self.allowed_length:
            return
        longest: dict[int, int] = {}
        for at, length in enumerate(_repeats(back, limit)):
            if length >= self.allowed_length and length > longest.get(back[at - 1], 0):
                longest[back[at - 1]] = length
        most = MAX_LOG / log(self.base) if self.base > 1 else inf
        for token, length in longest.items():
            if token not in self.breakers:
                scores[token] -= self.multiplier * self.base ** min(length - self.allowed_length, most)


def _repeats(back: Sequence[int], limit: int) -> list[int]:
    """Per place in a reversed text, how many tokens from there equal its first ones, at most `limit`; 0 at 0.

    The Z algorithm: back[left:right] is known to equal the beginning, so each token is compared once.
    """
    found = [0] * len(back)
    left = right = 0
    for at in range(1, len(back)):
        length = min(found[at - left], right - at) if at < right else 0
        while length < limit and at + length < len(back) and back[length] == back[at + length]:
            length += 1
        found[at] = length
        if at + length > right:
            left, right = at, at + length
    return found


def breaker_ids(texts: Iterable[str], breakers: Sequence[str] = BREAKERS) -> frozenset[int]:
    """Ids of the tokens whose text (given in the order of ids) holds a breaker."""
    return frozenset(token for token, text in enumerate(texts) if any(part in text for part in breakers))
