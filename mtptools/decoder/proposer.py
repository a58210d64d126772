"""Choosing drafts from the head's logits, remembering what each was drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from mtptools.decoder.rejection import Proposal
from mtptools.decoder.sampling import DRAFT, Sampling, choose
from mtptools.errors import CorruptError

__all__ = ["Proposer"]


class Proposer:
    """The `choose` of `Drafter.draft` for the drafts of one step after `text`.

    sampling  the drafts' own, see `Sampling.for_drafts`
    drawn     draw with noise of their own, and keep the distributions, for the rejection rule; without it drafts take
              the target's noise, so that they agree with it as often as can be
    """

    def __init__(self, text: Sequence[int], sampling: Sampling, *, drawn: bool = False) -> None:
        self.history = list(text)
        self.sampling, self.drawn = sampling, drawn and sampling.temperature > 0
        self.proposals: list[Proposal] = []

    def __call__(self, row: Tensor, position: int) -> int:
        """Raises CorruptError for logits [vocab] that are not numbers; -inf, outside a draft vocabulary, is one."""
        logits = row.cpu().numpy()
        if not np.isfinite(logits.max()):
            raise CorruptError(
                f"the head's logits for the draft of token {position} are not finite",
                hint="damaged weights, or too large for float16: try --dtype float32, then another copy of the file",
            )
        if self.drawn:
            token = choose(logits, self.history, self.sampling, DRAFT)
            self.proposals.append(Proposal(token, self.sampling.probabilities(logits, self.history)))
        else:
            token = choose(logits, self.history, self.sampling)
            self.proposals.append(Proposal(token))
        self.history.append(token)
        return token
