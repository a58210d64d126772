"""Acceptance of several heads on one trunk: the trunk decodes once, each head drafts against what it said.

Which drafts are accepted follows from the plain trace alone (`acceptance.simulate`), so a head costs its own passes and
nothing of the trunk's, and every head meets the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import hypot, inf, sqrt
from typing import Final

from mtptools.decoder.acceptance import Acceptance, simulate, total
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.speculate import decode_plain
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.errors import UsageError

__all__ = [
    "Measured",
    "difference_error",
    "freedom",
    "length_error",
    "measure_head",
    "passages",
    "plain_traces",
    "rate_difference_error",
]

PAIRED: Final = 4
"""Prompts from which on errors are taken prompt by prompt: the spread of fewer says little."""

FEW: Final = 30
"""Steps below which no error is known: that all of so few are alike says nothing."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measured:
    """What one head got at k drafts a step, prompt by prompt."""

    k: int
    counts: tuple[DraftCounts, ...]

    @cached_property
    def acceptance(self) -> Acceptance:
        return total(self.k, self.counts)

    @property
    def mean_length(self) -> float:
        return self.acceptance.mean_length

    @property
    def error(self) -> float:
        """Standard error of the mean length; infinite where it is not known.

        Steps of one prompt are alike, so it is taken prompt by prompt; of few prompts, step by step.
        """
        if self.acceptance.steps < FEW:
            return inf
        return length_error(self.acceptance) if len(self.counts) < PAIRED else _spread(_residuals(self))


def plain_traces(
    model: Model,
    prompts: Sequence[Sequence[int]],
    n_tokens: int,
    progress: Progress | None = None,
    *,
    stop: Collection[int] = (),
) -> list[Trace]:
    """Greedy text after every prompt, with the trunk's states. Raises UsageError for what cannot be decoded.

    stop  token ids that end a text
    """
    if not prompts or n_tokens < 3:
        raise UsageError("measuring heads needs a prompt and at least 3 tokens", hint="--tokens 64")
    say = progress or (lambda _: None)
    traces = []
    for number, ids in enumerate(prompts, 1):
        say(f"the trunk's own text: prompt {number} of {len(prompts)}")
        traces.append(decode_plain(model, ids, n_tokens, keep_states=True, stop=stop))
    return traces


def measure_head(head: Head, traces: Sequence[Trace], k: int) -> Measured:
    """What a head of the traces' model would have got of their texts."""
    return Measured(k, tuple(simulate(head, trace, k) for trace in traces))


def length_error(one: Acceptance) -> float:
    """Standard error of the mean length: the spread of tokens per step by the root of the number of steps.

    Steps are taken as independent; drafts of one step are not. Infinite for fewer than two steps.
    """
    if one.steps < 2:
        return inf
    # accepted[j - 1] steps had j right drafts or more: the sum of (1 + hits)^2 is steps + sum (2j + 1) accepted[j - 1].
    squares = one.steps + sum((2 * j + 1) * count for j, count in enumerate(one.accepted, 1))
    variance = (squares - one.emitted**2 / one.steps) / (one.steps - 1)
    return sqrt(max(variance, 0.0) / one.steps)


def difference_error(one: Measured, other: Measured) -> float:
    """Standard error of the difference of two heads' mean lengths.

    Both drafted the same texts, so much of their noise is one noise: it is taken prompt by prompt (a ratio estimator,
    linearised), which also allows for steps of one prompt being alike. With few prompts the two errors are added as if
    they were of different texts. Never less than a token in all steps: heads that did the same on these texts may
    differ by a step on others. Infinite where an error is not known.
    """
    error = hypot(one.error, other.error)
    if error < inf and len(one.counts) >= PAIRED:
        error = _spread([a - b for a, b in zip(_residuals(one), _residuals(other), strict=True)])
    return hypot(error, 1 / max(one.acceptance.steps, 1))


def rate_difference_error(one: Measured, other: Measured) -> float:
    """As `difference_error`, of the rates: accepted drafts by all drafts. Never less than a draft in all of them."""
    if hypot(one.error, other.error) == inf:
        return inf
    if len(one.counts) >= PAIRED:
        pairs = zip(_rate_residuals(one), _rate_residuals(other), strict=True)
        error = _spread([a - b for a, b in pairs])
    else:  # hits of a step by drafts of a step
        error = hypot(
            *(length_error(m.acceptance) * m.acceptance.steps / sum(m.acceptance.drafted) for m in (one, other))
        )
    return hypot(error, 1 / sum(one.acceptance.drafted))


def freedom(one: Measured, other: Measured) -> int:
    """Degrees of freedom of `difference_error`: prompts less one; of few prompts, steps less one."""
    n = len(one.counts)
    return max((n if n >= PAIRED else min(one.acceptance.steps, other.acceptance.steps)) - 1, 1)


def _spread(moved: Sequence[float]) -> float:
    """Standard error of the sum of what prompts move."""
    n = len(moved)
    return sqrt(n / (n - 1) * sum(value**2 for value in moved))


def _residuals(one: Measured) -> list[float]:
    """What each prompt moves the mean length by."""
    whole = one.acceptance
    return [(part.emitted - whole.mean_length * part.steps) / max(whole.steps, 1) for part in one.counts]


def _rate_residuals(one: Measured) -> list[float]:
    """What each prompt moves the rate by."""
    whole = one.acceptance
    return [(sum(part.accepted) - whole.rate * sum(part.drafted)) / sum(whole.drafted) for part in one.counts]


def passages(texts: Sequence[Sequence[int]], size: int, count: int, start: Sequence[int] = ()) -> list[list[int]]:
    """Prompts cut out of longer texts: at most `count` of `size` tokens, spread evenly over all. A shorter text is one.

    texts  token ids, without what the tokenizer puts before a text: `start`, which goes before every passage
    """
    pieces = [ids[at : at + size] for ids in texts if ids for at in range(0, max(len(ids) - size, 0) + 1, size)]
    count = min(count, len(pieces))
    return [[*start, *pieces[(2 * n + 1) * len(pieces) // (2 * count)]] for n in range(count)]
