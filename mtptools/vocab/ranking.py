"""Which tokens a head keeps: ranked by how much of the text they are.

A token's score is the sum over the domains of weight x its share of the domain's tokens: a domain counts by its
weight, whatever its size. At each size no other choice covers more of the weighted mean, in the text counted.

In text that was held out no other rule did better by the worst domain either. Qwen3.6's vocabulary, Python, English,
Spanish, Japanese and Chinese (the texts of docs/recipes/prune-the-vocabulary.md), each tenth of the documents held out
in turn; means, whose differences have standard errors of about 0.03 points and 1,000 tokens:

                                                             worst domain at 32,768   tokens for 99.5 % of each
    sum of shares                                                   96.82 %                 73,900
    largest share in any domain                                     96.63 %                 74,900
    share of what is rarer, largest of any domain                   96.73 %                 72,900
    sum of occurrences                                              96.39 %                 75,300
    weights tuned for the worst domain of the counted text          96.86 %                 75,800

Tuned weights win half a point in the text that is counted, and lose it where the text is another: they fit the rare
tokens that happened to occur.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mtptools.errors import InputError, UsageError
from mtptools.vocab.counting import Counted
from mtptools.vocab.coverage import K, curve, weighted
from mtptools.vocab.maps import Absolute, DraftVocabulary

__all__ = ["TARGET", "Ranking", "auto", "chosen", "parse_size", "rank", "step_of"]

TARGET: Final = 0.995
"""Held-out coverage that `auto` wants in every domain."""

_SIZE: Final = re.compile(r"([0-9]{1,9})(k?)", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Ranking:
    """ids   [n] int64, absolute: every token that can be chosen, best first
    kept  the first `kept` of them stand there whatever the text says
    seen  the first `seen` of them are kept or occur in the text; behind them nothing is known of a token
    size  of the target's vocabulary; n is less where a head is reduced already
    """

    ids: Absolute
    kept: int
    seen: int
    size: int


def rank(
    counted: Sequence[Counted],
    weights: Mapping[str, float],
    kept: Collection[int],
    size: int,
    candidates: DraftVocabulary | None = None,
) -> Ranking:
    """Kept tokens first, then by score, then those never seen; ties by the lower id, which BPE merged earlier.

    weights     as in `coverage.weighted`; a domain of weight 0 has no say
    kept        ids that are always kept, see `pinned`
    size        of the target's vocabulary
    candidates  what a head that is reduced already can draft: nothing else is ranked, kept or not

    Raises UsageError (weights).
    """
    by_domain = weighted(counted, weights)
    score = np.zeros(size, dtype=np.float64)
    for one in counted:
        score += by_domain[one.domain] / max(int(one.train.sum()), 1) * one.train
    score[list(kept)] = np.inf
    ids = np.arange(size, dtype=np.int64) if candidates is None else candidates.ids
    of_ids = score[ids]
    order = np.argsort(-of_ids, kind="stable")  # ids rise, so equal scores stay in their order
    return Ranking(Absolute(ids[order]), int(np.isinf(of_ids).sum()), int((of_ids > 0).sum()), size)


def chosen(ranking: Ranking, n: int) -> DraftVocabulary:
    """The best n tokens.

    Raises UsageError: n below 1, below the number of kept tokens, or above the number there are.
    """
    most = len(ranking.ids)
    if n < 1:
        raise UsageError(f"{n} tokens are no vocabulary", where="--size", hint="--size 64k")
    if n > most:
        have = "the vocabulary has" if most == ranking.size else "the head is reduced already and can draft"
        raise UsageError(f"{n:,} tokens asked for; {have} {most:,}", where="--size", hint=f"--size {most}, or less")
    if n < ranking.kept:
        raise UsageError(
            f"{n:,} tokens asked for; {ranking.kept:,} are kept whatever the text says (special tokens, bytes, "
            "chat template, --ids)",
            where="--size",
            hint=f"--size {ranking.kept}, or more",
        )
    return DraftVocabulary(Absolute(np.sort(ranking.ids[:n])), ranking.size)


def auto(
    counted: Sequence[Counted],
    ranking: Ranking,
    weights: Mapping[str, float],
    *,
    target: float = TARGET,
    step: int = K,
) -> int:
    """The smallest multiple of `step`, or all there are, that covers `target` of every domain's held-out text.

    counted, weights  those that `ranking` was made with; a domain of weight 0 is not asked

    Raises InputError when a domain gets there only with tokens that occur nowhere in the text counted: which of
    those are next, nothing says.
    """
    by_domain = weighted(counted, weights)
    curves = {one.domain: curve(ranking.ids, one.held) for one in counted if by_domain[one.domain]}
    seen = {name: float(values[ranking.seen]) for name, values in curves.items()}
    short = sorted((value, name) for name, value in seen.items() if value < target)
    if short:
        told = ", ".join(f"{name} {value:.2%}" for value, name in short)
        raise InputError(
            f"{target:.1%} held-out coverage is out of reach: with every token that was seen "
            f"({ranking.seen:,}) it is {told}",
            where="--size auto",
            hint=f"give more text of {short[0][1]}, or a size: --size {ranking.seen}"
            if len(ranking.ids) == ranking.size
            else f"the head is reduced already and has lost the rest: --restore DONOR first, or --size {ranking.seen}",
        )
    need = max(int(np.argmax(values >= target)) for values in curves.values())
    return min(-(-max(need, ranking.kept, 1) // step) * step, len(ranking.ids))


def step_of(size: int) -> int:
    """What `auto` rounds up to, for a vocabulary of `size` tokens: 1024; of small ones a thirty-second."""
    return K if size >= 32 * K else max(size // 32, 1)


def parse_size(text: str) -> int | None:
    """Tokens: `32768`, or `64k` = 65,536, k being 1024 as in the names of people's lists. None: `auto`.

    Raises UsageError.
    """
    if text.strip().lower() == "auto":
        return None
    found = _SIZE.fullmatch(text.strip())
    if not found or not int(found[1]):
        raise UsageError(f"no number of tokens: {text}", where="--size", hint="--size 64k, --size 32768, --size auto")
    return int(found[1]) * (K if found[2] else 1)
