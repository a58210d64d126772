"""How often drafts are right: counted in the real loop, or computed from a plain trace alone.

Speculative output equals plain output, so which drafts a head would make, and which of them would be accepted,
follows from the plain trace's trunk states and tokens: `simulate` runs only the head. It gives the real loop's
counts exactly, and makes trying a head in many variants cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder.drafter import Drafter
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.proposer import Proposer
from mtptools.decoder.sampling import GREEDY, Sampling
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.errors import UsageError

__all__ = ["Acceptance", "first_hits", "simulate", "tapped_states", "total"]

LOGIT_ROWS: Final = 64
"""Rows of logits held at a time."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counts of one k over all prompts.

    drafted, accepted  per draft position: steps that drafted it, steps that accepted it
    steps, emitted     verify steps, and the tokens that came out of them (accepted drafts and one more each)
    """

    k: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    steps: int
    emitted: int

    @property
    def per_position(self) -> tuple[float, ...]:
        """Accepted at a position by steps that drafted it."""
        return tuple(a / d if d else 0.0 for a, d in zip(self.accepted, self.drafted, strict=True))

    @property
    def conditional(self) -> tuple[float, ...]:
        """Accepted at a position given that all before it were."""
        before = (self.drafted[:1] + self.accepted)[: len(self.accepted)]
        return tuple(a / b if b else 0.0 for a, b in zip(self.accepted, before, strict=True))

    @property
    def rate(self) -> float:
        """All accepted drafts by all drafts: what runtimes report."""
        return sum(self.accepted) / sum(self.drafted) if sum(self.drafted) else 0.0

    @property
    def mean_length(self) -> float:
        """Tokens per verify step, the step's own token included: 1 is no gain, k + 1 the most."""
        return self.emitted / self.steps if self.steps else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "per_position": self.per_position,
            "conditional": self.conditional,
            "rate": self.rate,
            "mean_length": self.mean_length,
        }


def total(k: int, counts: Sequence[DraftCounts]) -> Acceptance:
    """Counts of several prompts as one."""
    drafted, accepted = [0] * k, [0] * k
    for one in counts:
        for position, (d, a) in enumerate(zip(one.drafted, one.accepted, strict=True)):
            drafted[position] += d
            accepted[position] += a
    steps, emitted = sum(one.steps for one in counts), sum(one.emitted for one in counts)
    return Acceptance(k, tuple(drafted), tuple(accepted), steps, emitted)


def tapped_states(head: Head, trace: Trace) -> Tensor:
    """[positions read, width]: what slots of the head take of a trace. Raises UsageError when it kept no states."""
    if trace.states is None:
        raise UsageError("the trace kept no trunk states", hint="decode_plain(…, keep_states=True)")
    return trace.states.tap(head.wiring.tap)


@torch.inference_mode()
def simulate(head: Head, trace: Trace, k: int, *, sampling: Sampling = GREEDY) -> DraftCounts:
    """What `decode_speculative(…, k)` with this head would count on the text of a plain trace.

    sampling  the drafts': the trace's own, or what its `for_drafts` gives
    """
    states = tapped_states(head, trace)
    text = trace.prompt + trace.tokens
    drafter = Drafter(head)
    counts = DraftCounts()
    seen, emitted = 0, 1
    while emitted < len(trace.tokens):
        known = len(trace.prompt) + emitted
        drafter.observe(states[seen : known - 1], text[seen + 1 : known])
        seen = known - 1
        count = min(k, trace.requested - emitted - 1)
        drafts = drafter.draft(count, Proposer(text[:known], sampling))
        hits = 0
        while hits < min(len(drafts), len(text) - known - 1) and drafts[hits] == text[known + hits]:
            hits += 1
        counts.add(len(drafts), hits)
        emitted += hits + 1
    return counts


@torch.inference_mode()
def first_hits(
    head: Head, trace: Trace, tapped: Tensor | None = None, lag: int = 0, draft: int = 1
) -> NDArray[np.bool_]:
    """Per emitted token but the first: is it the head's draft, given the true text before it?

    tapped  trunk states [rows, width] to feed instead of the wired ones
    lag     1 feeds the current token's embedding where the next one's belongs
    draft   number of the draft: 1 is the first layer's; 2 the second layer's on the first one's states, and so on
    """
    states = tapped_states(head, trace) if tapped is None else tapped
    text = trace.prompt + trace.tokens
    first = max(0, len(trace.prompt) - draft)  # slot i predicts token i + draft + 1
    wanted = text[first + draft + 1 :]
    if not wanted:
        return np.zeros(0, dtype=np.bool_)
    post, state = states, states
    for layer in range(draft):
        rows = len(text) - 2 - layer
        tokens = text[1 - lag + layer : 1 - lag + layer + rows]
        cache = head.layers[layer].block.new_cache()
        post, state = head.step(layer, state[:rows], tokens, cache, layer)
    post = post[first:]
    drafts: list[int] = []
    for start in range(0, post.shape[0], LOGIT_ROWS):
        rows_ = head.logits(post[start : start + LOGIT_ROWS], draft - 1).cpu().numpy()
        drafts += [int(row.argmax()) for row in rows_]
    return np.asarray(np.array(drafts) == np.array(wanted), dtype=np.bool_)
