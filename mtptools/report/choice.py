"""Which head to publish: the smallest that drafts as well as the one it is made from, and could the prompts tell?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mtptools.decoder.sweep import Measured, difference_error, freedom
from mtptools.ops.roofline import Traffic
from mtptools.report.chance import t_quantile

__all__ = ["AS_IT_IS", "LEVEL", "Choice", "Row", "Sweep", "Tried", "choose", "label_of"]

AS_IT_IS: Final = "as it is"

LEVEL: Final = 0.01
"""How often chance alone may make a difference that counts."""


def label_of(name: str, weighted: bool) -> str:
    """What a type is called in results."""
    return f"{name}, imatrix" if weighted else name


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
        return label_of(self.name, self.weighted)

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

    More than chance: by Student's t, two-sided, in LEVEL of cases where there is nothing. Where one of several heads
    would do (to be the reference, not to be alike), in LEVEL of cases for all of them together (Bonferroni).
    """

    best: Tried
    reference: Tried
    wanted: float
    chosen: Tried
    unsettled: tuple[Tried, ...]
    alike: bool

    @property
    def settled(self) -> bool:
        """Can the prompts tell that the chosen head is good enough?"""
        return self.chosen not in self.unsettled

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

    several = max(len(tried) - 1, 1)

    def unclear(one: Tried, other: Tried, line: float, of: int = 1) -> bool:
        """Is a head, one `of` so many, on neither side of a line that hangs on another's length, by chance?"""
        ours, theirs = one.measured, other.measured
        error = t_quantile(freedom(ours, theirs), LEVEL / of) * difference_error(ours, theirs)
        return one is not other and abs(ours.mean_length - line) <= error

    own, best = tried[0], max(tried, key=lambda one: one.measured.mean_length)
    reference = own if unclear(best, own, own.measured.mean_length, several) else best
    length = reference.measured.mean_length
    wanted = (1 - tolerance) * length
    chosen = min((one for one in tried if one.measured.mean_length >= wanted), key=lambda one: one.order)
    deciding = sorted((one for one in tried if one.order <= chosen.order), key=lambda one: one.order)
    unsettled = tuple(one for one in deciding if unclear(one, reference, wanted))
    others = [one for one in tried if one.measured.counts != reference.measured.counts]
    alike = bool(others) and all(unclear(one, reference, length, several) for one in others)
    return Choice(best, reference, wanted, chosen, unsettled, alike)
