"""Which head to publish: the smallest that drafts as well as the one it is made from, and could the prompts tell?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mtptools.decoder.sweep import Measured, difference_error
from mtptools.ops.roofline import Traffic

__all__ = ["AS_IT_IS", "CHANCE", "Choice", "Row", "Sweep", "Tried", "choose"]

AS_IT_IS: Final = "as it is"

CHANCE: Final = 2.33
"""Standard errors that a difference must exceed to count: 1 in 100 by chance."""


@dataclass(frozen=True)
class Tried:
    """One head, measured.

    name      the type that was asked for, or AS_IT_IS
    weighted  quantized by an importance matrix
    """

    name: str
    weighted: bool
    traffic: Traffic
    measured: Measured

    @property
    def label(self) -> str:
        return f"{self.name}, imatrix" if self.weighted else self.name

    @property
    def draft_bytes(self) -> float:
        """What a draft reads, the output matrix included; the mean of k where layers take turns."""
        return self.traffic.drafts(self.measured.k) / self.measured.k

    @property
    def speedup(self) -> float:
        """By the model of bytes read."""
        return self.traffic.speedup(self.measured.mean_length, self.measured.k)

    @property
    def order(self) -> tuple[float, int, float, bool, str]:
        """Smaller first, then the one that drafts better, then the one that is there already."""
        return self.draft_bytes, self.traffic.head, -self.measured.mean_length, self.name != AS_IT_IS, self.label


@dataclass(frozen=True)
class Row:
    """A type of the sweep: what it got, or why it cannot be had."""

    label: str
    tried: Tried | None = None
    why: str = ""


@dataclass(frozen=True)
class Choice:
    """best        the largest mean length
    reference   what others are measured by: the head as it is, or the best where that is better by more than chance.
                A type does not draft better than what it was made from, but of many one will seem to
    wanted      the least mean length that is within the tolerance of the reference's
    chosen      the smallest head that has that
    unsettled   of those that decide (the chosen one, and smaller ones that fell short): nearer to `wanted` than these
                prompts can tell
    alike       True: no head differs from the reference by more than chance
    """

    best: Tried
    reference: Tried
    wanted: float
    chosen: Tried
    unsettled: tuple[Tried, ...]
    alike: bool

    def away(self, one: Tried) -> tuple[float, float]:
        """Difference from the reference's mean length, and its standard error."""
        if one is self.reference:
            return 0.0, 0.0
        away = one.measured.mean_length - self.reference.measured.mean_length
        return away, difference_error(one.measured, self.reference.measured)


@dataclass
class Sweep:
    """All of it. `rows` in the order of asking, the head as it is first; `facts` say what was decoded."""

    path: str
    k: int
    n_tokens: int
    prompts: int
    tolerance: float
    distinct: float
    rows: list[Row] = field(default_factory=list)
    fingerprint: dict[str, Any] = field(default_factory=dict)
    prompts_digest: str = ""

    @property
    def tried(self) -> list[Tried]:
        return [row.tried for row in self.rows if row.tried is not None]

    @property
    def choice(self) -> Choice:
        return choose(self.tried, self.tolerance)


def choose(tried: Sequence[Tried], tolerance: float) -> Choice:
    """The smallest head (bytes a draft reads, then bytes of the file) within `tolerance` of the reference's length.

    tried      the head as it is first
    tolerance  a share
    """

    def unclear(one: Tried, other: Tried, line: float) -> bool:
        """Is a head on neither side of a line that hangs on another's length, by more than chance?"""
        away = abs(one.measured.mean_length - line)
        return one is not other and away <= CHANCE * difference_error(one.measured, other.measured)

    own, best = tried[0], max(tried, key=lambda one: one.measured.mean_length)
    reference = own if unclear(best, own, own.measured.mean_length) else best
    length = reference.measured.mean_length
    wanted = (1 - tolerance) * length
    chosen = min((one for one in tried if one.measured.mean_length >= wanted), key=lambda one: one.order)
    deciding = sorted((one for one in tried if one.order <= chosen.order), key=lambda one: one.order)
    unsettled = tuple(one for one in deciding if unclear(one, reference, wanted))
    others = [one for one in tried if one.measured.counts != reference.measured.counts]
    alike = bool(others) and all(unclear(one, reference, length) for one in others)
    return Choice(best, reference, wanted, chosen, unsettled, alike)
