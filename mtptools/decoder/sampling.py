"""Choosing a token from logits: greedy, or sampled with noise that belongs to a position.

Sampling adds Gumbel noise keyed by (seed, absolute position) to the scores that the chain leaves and takes the
largest. The noise does not depend on how a position was reached, so the sampled output of speculative decoding
equals that of plain decoding. Everything here runs in numpy on the CPU, in float64: devices cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf, log
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.penalties import Dry, Limit, Penalties, check

__all__ = ["ACCEPT", "DRAFT", "DRAFT_CHOICES", "GREEDY", "SAMPLE", "Sampling", "choose", "draw", "numbers", "top_two"]

SAMPLE, DRAFT, ACCEPT = range(3)
"""What random numbers of a position are for. Those of different purposes are independent."""

DRAFT_CHOICES: Final = ("sampler", "chain", "argmax")

_LIMITS: Final[Mapping[str, Limit]] = {
    "temperature": ("temperature", lambda v: 0 <= v < inf, "0 (greedy) or more", "0.8"),
    "top_k": ("top-k", lambda v: v >= 0, "0 (off) or more", "40"),
    "top_p": ("top-p", lambda v: 0 < v <= 1, "above 0 and at most 1 (off)", "0.95"),
    "min_p": ("min-p", lambda v: 0 <= v <= 1, "from 0 (off) to 1", "0.05"),
    "seed": ("seed", lambda v: 0 <= v < 2**64, "a whole number from 0, of 64 bits", "1"),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """The chain: penalties, DRY, top-k, top-p, min-p, temperature. The defaults are greedy and change nothing.

    The order is llama.cpp's default (`--samplers` in tools/server/README.md), less top-n-sigma, typical and XTC, which
    are not here. Temperature comes last, so top-p and min-p see the probabilities of temperature 1 and keep the same
    tokens at every temperature. transformers and vLLM apply temperature before the filters: there the same settings
    keep more tokens when it is above 1, and fewer below.

    top_p  the fewest most probable tokens of at least this mass, of what top-k left
    min_p  tokens at least this probable, relative to the most probable one

    Raises UsageError for values that make no sense.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    penalties: Penalties = field(default_factory=Penalties)
    dry: Dry = field(default_factory=Dry)

    def __post_init__(self) -> None:
        check(self, _LIMITS)

    @property
    def is_plain(self) -> bool:
        """Is it the argmax of the logits alone?"""
        return self.temperature == 0 and not self.penalties and not self.dry

    def scores(self, logits: NDArray[np.float32], history: Sequence[int]) -> NDArray[np.float64]:
        """The chain on logits [vocab] after the tokens of `history`: log-probabilities but for a constant.

        The largest is 0, filtered tokens are at -inf. At temperature 0 nothing is filtered.
        """
        scores = logits.astype(np.float64)
        self.penalties.apply(scores, history)
        self.dry.apply(scores, history)
        scores -= scores.max()
        if self.temperature == 0:
            return scores
        with np.errstate(over="ignore"):  # a tiny temperature takes what is far below the peak to -inf, rightly
            return _filtered(scores, self) / self.temperature

    def probabilities(self, logits: NDArray[np.float32], history: Sequence[int]) -> NDArray[np.float64]:
        """What `choose` draws from, [vocab]; at temperature 0 all on one token."""
        scores = self.scores(logits, history)
        if self.temperature == 0:
            out = np.zeros_like(scores)
            out[scores.argmax()] = 1.0
            return out
        weights = np.exp(scores)
        return np.asarray(weights / weights.sum())

    def for_drafts(self, choice: str) -> Sampling:
        """How a draft is chosen from the head's logits, when this is how the target's token is.

        sampler  the same chain with the same noise: agrees whenever head and trunk are near enough
        chain    the chain's most probable token, llama.cpp's "first candidate". Filters and temperature do not move it,
                 so it differs from argmax only where a penalty does
        argmax   of the head's logits as they are
        """
        return {"sampler": self, "chain": replace(self, temperature=0.0), "argmax": GREEDY}[choice]

    def with_breakers(self, ids: frozenset[int]) -> Sampling:
        return replace(self, dry=replace(self.dry, breakers=ids))

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        out["dry"]["breakers"] = sorted(self.dry.breakers)
        return out

    def __str__(self) -> str:
        """What differs from the defaults, in the words of the command line."""
        parts = ["greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"]
        parts += [f"top-k {self.top_k}"] if self.top_k else []
        parts += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"min-p {self.min_p:g}"] if self.min_p else []
        off = Penalties()
        for name in ("repetition", "presence", "frequency"):
            value = getattr(self.penalties, name)
            parts += [f"{name} penalty {value:g}"] if value != getattr(off, name) else []
        parts += [f"DRY {self.dry.multiplier:g}"] if self.dry else []
        parts += [f"seed {self.seed}"] if self.temperature else []
        return ", ".join(parts)


GREEDY: Final = Sampling()


def choose(
    logits: NDArray[np.float32], history: Sequence[int], sampling: Sampling = GREEDY, purpose: int = SAMPLE
) -> int:
    """The token that follows `history`, from logits [vocab]. Among equals the smallest id wins."""
    scores = sampling.scores(logits, history)
    if sampling.temperature == 0:
        return int(scores.argmax())
    return draw(scores, sampling.seed, len(history), purpose)


def numbers(seed: int, position: int, purpose: int, size: int) -> NDArray[np.float64]:
    """[size] random numbers in [0, 1), the same for the same key; a longer row begins with a shorter one."""
    key, counter = np.array([seed, position], np.uint64), np.array([0, 0, 0, purpose], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).random(size)


def draw(scores: NDArray[np.float64], seed: int, position: int, purpose: int = SAMPLE) -> int:
    """A draw from log-probabilities [vocab] (but for a constant): the largest after Gumbel noise is added."""
    kept = np.flatnonzero(scores > -np.inf)
    uniform = np.maximum(numbers(seed, position, purpose, len(scores))[kept], np.finfo(np.float64).tiny)
    return int(kept[(scores[kept] - np.log(-np.log(uniform))).argmax()])


def _filtered(scores: NDArray[np.float64], sampling: Sampling) -> NDArray[np.float64]:
    """Scores, the largest of them 0, with the tokens outside top-k, top-p or min-p at -inf. Small ids win ties."""
    kept = np.arange(len(scores))
    if 0 < sampling.top_k < len(scores):
        least = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        kept = _descending(scores, np.flatnonzero(scores >= least))[: sampling.top_k]
    if sampling.top_p < 1:
        kept = _descending(scores, np.sort(kept))
        weights = np.exp(scores[kept])
        before = np.cumsum(weights) - weights
        kept = kept[before < sampling.top_p * weights.sum()]
    if sampling.min_p:
        kept = kept[scores[kept] >= log(sampling.min_p)]
    out = np.full_like(scores, -np.inf)
    out[kept] = scores[kept]
    return out


def _descending(scores: NDArray[np.float64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ascending ids, largest score first."""
    return np.asarray(ids[np.argsort(-scores[ids], kind="stable")])


def top_two(logits: NDArray[np.float32]) -> tuple[int, float]:
    """(argmax, distance in logits to the best of the others). `logits` is left as it was."""
    best = int(logits.argmax())
    peak = logits[best]
    logits[best] = -np.inf
    second = logits.max()
    logits[best] = peak
    return best, float(peak - second)
