"""Seconds of two heads on the same prompts: of decoding with each, and of a draft alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import torch

from mtptools.decoder.acceptance import tapped_states
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.model import Model
from mtptools.decoder.parity import compare
from mtptools.decoder.proposer import Proposer
from mtptools.decoder.sampling import GREEDY
from mtptools.decoder.speculate import decode_speculative
from mtptools.decoder.trace import Trace

__all__ = ["RUNS", "Speed", "time_heads"]

RUNS: Final = 3
DRAFTS: Final = 5
"""Times that a step's drafts are made per run."""


@dataclass(frozen=True)
class Speed:
    """Two heads of one trunk: medians over runs, the heads in turn.

    tokens_per_second  of speculative decoding, of the tokens after a text's first
    draft_seconds      of one draft, choosing it among all tokens included: the mean of the k of a step
    equal              all runs gave the logits of plain decoding, bit for bit
    """

    k: int
    prompts: int
    runs: int
    tokens_per_second: tuple[float, float]
    draft_seconds: tuple[float, float]
    equal: bool

    @property
    def gain(self) -> float:
        """Tokens a second with the second head by those with the first."""
        return self.tokens_per_second[1] / self.tokens_per_second[0]

    @property
    def draft_gain(self) -> float:
        return self.draft_seconds[0] / self.draft_seconds[1]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.gain, "draft_gain": self.draft_gain}


def time_heads(
    models: tuple[Model, Model],
    texts: Sequence[Trace],
    *,
    k: int,
    runs: int = RUNS,
    progress: Callable[[str], None] = lambda what: None,
) -> Speed:
    """Decode the prompts of plain traces (states kept) again, with k drafts a step, `runs` times with each head.

    Raises MissingHeadError.
    """
    seconds: tuple[list[float], list[float]] = ([], [])
    drafts: tuple[list[float], list[float]] = ([], [])
    tokens, equal = 0, True
    for model in models:
        decode_speculative(model, texts[0].prompt, min(texts[0].requested, 2 * k + 4), k)  # warm-up
    for number, text in enumerate(texts, 1):
        progress(f"speed: prompt {number} of {len(texts)}")
        n = len(text.tokens)  # a stop token that ended it needs no asking
        times: tuple[list[float], list[float]] = ([], [])
        steps: tuple[list[float], list[float]] = ([], [])
        for run in range(runs):
            for arm in (0, 1) if run % 2 == 0 else (1, 0):
                trace = decode_speculative(models[arm], text.prompt, n, k)
                times[arm].append(trace.decode_seconds)
                steps[arm].append(_draft_seconds(models[arm], text, k))
                equal = equal and compare(text, trace).equal
        for arm in (0, 1):
            seconds[arm].append(median(times[arm]))
            drafts[arm].append(median(steps[arm]))
        tokens += n - 1
    rates = tokens / sum(seconds[0]), tokens / sum(seconds[1])
    return Speed(k, len(texts), runs, rates, (median(drafts[0]), median(drafts[1])), equal)


@torch.inference_mode()
def _draft_seconds(model: Model, text: Trace, k: int) -> float:
    """A draft after the whole text, as the decoding loop makes it."""
    head, known = model.require_head(), text.prompt + text.tokens
    drafter = Drafter(head)
    drafter.observe(tapped_states(head, text), known[1:])
    started = time.perf_counter()
    for _ in range(DRAFTS):
        drafter.draft(k, Proposer(known, GREEDY))
    return (time.perf_counter() - started) / (DRAFTS * k)
