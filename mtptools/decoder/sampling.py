"""Choosing a token from logits: greedy, or sampled with noise that belongs to a position.

Sampling adds Gumbel noise keyed by (seed, absolute position) to the filtered log-probabilities and takes the
largest. The noise does not depend on how a position was reached, so the sampled output of speculative decoding
equals that of plain decoding. Everything here runs in numpy on the CPU: devices cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import UsageError

__all__ = ["GREEDY", "Sampling", "choose", "top_two"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0 is greedy. top_k 0 and top_p 1 filter nothing."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or self.seed < 0:
            raise UsageError(
                f"sampling with temperature {self.temperature}, top-k {self.top_k}, top-p {self.top_p}, "
                f"seed {self.seed} is not possible",
                hint="temperature, top-k and seed are 0 or more, top-p is above 0 and at most 1",
            )


GREEDY: Final = Sampling()


def choose(logits: NDArray[np.float32], position: int, sampling: Sampling = GREEDY) -> int:
    """The token for `position` from logits [vocab]. Among equals the smallest id wins."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    scores = _filtered(logits.astype(np.float64) / sampling.temperature, sampling)
    key = np.array([sampling.seed, position], dtype=np.uint64)
    uniform = np.random.Generator(np.random.Philox(key=key)).random(len(scores))
    noise = -np.log(-np.log(np.maximum(uniform, np.finfo(np.float64).tiny)))
    return int((scores + noise).argmax())


def _filtered(scores: NDArray[np.float64], sampling: Sampling) -> NDArray[np.float64]:
    """Scores with the tokens outside top-k, then outside top-p, at -inf. Order is stable: small ids first."""
    if not sampling.top_k and sampling.top_p == 1:
        return scores
    order = np.argsort(-scores, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        weights = np.exp(scores[order] - scores[order[0]])
        before = np.cumsum(weights) - weights
        order = order[before < sampling.top_p * weights.sum()]
    kept = np.full_like(scores, -np.inf)
    kept[order] = scores[order]
    return kept


def top_two(logits: NDArray[np.float32]) -> tuple[int, float]:
    """(argmax, distance in logits to the best of the others). `logits` is left as it was."""
    best = int(logits.argmax())
    peak = logits[best]
    logits[best] = -np.inf
    second = logits.max()
    logits[best] = peak
    return best, float(peak - second)
