"""What our decoder says to a text that a runtime wrote. Without torch: comparing needs the numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mtptools.decoder.trace import DraftCounts

__all__ = ["Reading"]


@dataclass
class Reading:
    """One entry per token of the text, given all before it.

    best, second  the ids with the largest logits, of those that the runtime could emit
    logits        of those tokens that anything is asked about
    disturbed     the same tokens' where every layer is off by what rounding to bfloat16 would do
    rerouted      does a layer choose other experts then? empty for a model without
    counts        our head's drafts on this very text; None without a head
    """

    best: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    logits: list[Mapping[int, float]] = field(default_factory=list)
    disturbed: list[Mapping[int, float]] = field(default_factory=list)
    rerouted: list[bool] = field(default_factory=list)
    counts: DraftCounts | None = None

    def margin(self, at: int) -> float:
        """Best logit minus the second."""
        return self.logits[at][self.best[at]] - self.logits[at][self.second[at]]

    def may_reroute(self, at: int) -> bool:
        return at < len(self.rerouted) and self.rerouted[at]
