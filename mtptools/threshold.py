"""How little acceptance fails a run, absolutely or against a baseline."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

from mtptools.errors import UsageError

__all__ = ["DEAD", "LEAST", "RELATIVE", "Threshold", "rate_error"]

# A head below this acceptance of its first draft is dead (0 to 5 % is what wrong layouts and lost norms give).
DEAD: Final = 0.10
# First drafts below which it is not judged: a control that hurts shows in seven at the least.
LEAST: Final = 16
# Share of the baseline's acceptance, per k, that passes when nothing else is asked for.
RELATIVE: Final = 0.85
# Standard errors that a shortfall must exceed to count: 1 in 100 by chance.
CHANCE: Final = 2.33


@dataclass(frozen=True)
class Threshold:
    """absolute: least acceptance of the first draft, 0 to 1; relative: least share of the baseline's rate, per k.

    strict  a relative threshold that was asked for holds as it stands; the default one fails only when a shortfall is
            more than chance would explain, since two texts of a few hundred tokens differ by some points anyway
    """

    absolute: float = DEAD
    relative: float = RELATIVE
    strict: bool = False

    @classmethod
    def parse(cls, text: str | None) -> Threshold:
        """ "0.6" is absolute, "95%" relative to the baseline. Raises UsageError."""
        if text is None:
            return cls()
        try:
            value = float(text.removesuffix("%"))
        except ValueError:
            value = -1.0
        if text.endswith("%") and 0 <= value <= 100:
            return cls(relative=value / 100, strict=True)
        if not text.endswith("%") and 0 <= value <= 1:
            return cls(absolute=value)
        raise UsageError(
            f"{text!r} is no acceptance",
            where="--min-acceptance",
            hint="0.6 (of the first draft) or 95% (of the donor's)",
        )

    def short(self, ours: float, error: float, base: float, base_error: float) -> bool:
        """Is a share below what is wanted of the baseline's, by more than chance unless strict? Errors are standard."""
        wanted = self.relative * base
        if self.strict or ours >= wanted:
            return ours < wanted
        return (wanted - ours) / sqrt(error**2 + (self.relative * base_error) ** 2) > CHANCE


def rate_error(rate: float, steps: int) -> float:
    """Standard error of a rate of accepted drafts: steps, not drafts, are independent."""
    return sqrt((rate * (1 - rate) + 0.25 / steps) / steps)
