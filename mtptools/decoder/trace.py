"""What a decoding run leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.trunk import States

__all__ = ["DraftCounts", "Trace"]


@dataclass
class DraftCounts:
    """Per draft position: steps that drafted it, and steps that accepted it."""

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    steps: int = 0
    emitted: int = 0

    def add(self, drafted: int, accepted: int) -> None:
        """One verify step: the first `accepted` of `drafted` drafts were right, and one more token came out."""
        missing = drafted - len(self.drafted)
        if missing > 0:
            self.drafted.extend([0] * missing)
            self.accepted.extend([0] * missing)
        for position in range(drafted):
            self.drafted[position] += 1
            self.accepted[position] += position < accepted
        self.steps += 1
        self.emitted += accepted + 1


@dataclass
class Trace:
    """What decoding did when `requested` tokens were asked for.

    tokens   emitted ones; a stop token may end them early
    digests  per emitted token, xxh3-128 of the float32 bytes of the logits row it was chosen from
    margins  per emitted token, the best logit minus the second
    logits   rows that were kept whole, by number of the emitted token
    states   trunk states of every position read, if they were kept
    """

    prompt: list[int]
    requested: int
    tokens: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    states: States | None = None
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first, which the prompt's pass gives."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0
