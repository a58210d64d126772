"""What L5 found: a runtime's tokens, drafts and speed beside our decoder's, and what of it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from mtptools.runtimes.generation import Drafts, Generation
from mtptools.runtimes.grades import EXCESS, Comparison
from mtptools.threshold import DEAD, Threshold, rate_error

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance

__all__ = ["Row", "RuntimeReport"]


@dataclass(frozen=True)
class Row:
    """One prompt. drafts: the runtime's counts; ours: (drafted, accepted) of our decoder on the same text."""

    category: str
    plain: Generation | None
    mtp: Generation
    ours: tuple[int, int] | None = None

    def to_json(self, number: int) -> dict[str, Any]:
        drafts = self.mtp.drafts
        return {
            "prompt": number,
            "category": self.category,
            "tokens": len(self.mtp.tokens),
            "drafted": None if drafts is None else drafts.drafted,
            "accepted": None if drafts is None else drafts.accepted,
            "rate": None if drafts is None else drafts.rate,
            "steps": None if drafts is None else drafts.steps,
            "accepted_by_position": None if drafts is None else drafts.position,
            "ours": None if self.ours is None else {"drafted": self.ours[0], "accepted": self.ours[1]},
            "tokens_per_second": {
                "plain": None if self.plain is None else self.plain.tokens_per_second,
                "mtp": self.mtp.tokens_per_second,
            },
        }


@dataclass
class RuntimeReport:
    """how: of the run with MTP; how_plain: of that without, None where there was none
    k, tokens: drafts a step and tokens a prompt that were asked for
    ours: our decoder's acceptance on the runtime's own texts, None where it did not read them
    excess: (what, times the noise of disturbed layers) of noise that is measured, for every kind there is
    notes: what was not compared, and why
    threshold: how little acceptance fails, by itself or against ours
    """

    name: str
    version: str
    how: str
    how_plain: str | None
    k: int
    tokens: int
    rows: list[Row]
    comparisons: list[Comparison] = field(default_factory=list)
    ours: Acceptance | None = None
    excess: list[tuple[str, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    threshold: Threshold = field(default_factory=Threshold)

    @property
    def drafts(self) -> Drafts | None:
        """Of all prompts; None unless every one was counted."""
        told = [row.mtp.drafts for row in self.rows]
        known = [one for one in told if one is not None]
        if not known or len(known) < len(told):
            return None
        steps = [one.steps for one in known if one.steps is not None]
        positions = [one.position for one in known if one.position is not None]
        return Drafts(
            sum(one.drafted for one in known),
            sum(one.accepted for one in known),
            sum(steps) if len(steps) == len(known) else None,
            tuple(map(sum, zip(*positions, strict=False))) if len(positions) == len(known) else None,
        )

    def speed(self, which: str) -> float | None:
        """Tokens a second in the median of the prompts, "plain" or "mtp": one that was held up does not count."""
        made = [row.plain if which == "plain" else row.mtp for row in self.rows]
        known = [one.tokens_per_second for one in made if one is not None]
        return median(known) or None if known else None

    def failures(self) -> list[str]:
        """Why it is no pass, each a line of its own."""
        out = self._short() + self._unused() or self._acceptance()
        for what, times in self.excess:
            if times > EXCESS:
                out.append(
                    f"{what}: the logits part {times:.0f} times as far as rounding to bfloat16 in every layer would "
                    "take them: they do not compute the same model"
                )
        for one in self.comparisons:
            out += one.failures()
        return [f"L5 runtime: {line}" for line in out]

    def _short(self) -> list[str]:
        for number, row in enumerate(self.rows, 1):
            for made, which in ((row.plain, "without MTP"), (row.mtp, "with MTP")):
                if made is not None and len(made.tokens) < self.tokens:
                    return [f"prompt {number} {which}: {len(made.tokens)} tokens, {self.tokens} were asked for"]
        return []

    def _unused(self) -> list[str]:
        drafts = self.drafts
        if any(row.plain is not None and row.plain.drafts and row.plain.drafts.drafted for row in self.rows):
            return ["the run without MTP drafted too: it is not one without MTP"]
        if drafts is None:
            return ["the runtime does not tell how many drafts it accepts: whether the head is used is not known"]
        if not drafts.drafted:
            return ["the runtime drafted nothing: the head is not used"]
        return []

    def _acceptance(self) -> list[str]:
        drafts = self.drafts
        if drafts is None or not drafts.drafted:
            return []
        rate, least = drafts.rate, self.threshold.absolute
        first = rate
        if drafts.position and drafts.steps:
            first = drafts.position[0] / drafts.steps
        if first < least:
            dead = ": the head is dead there" if first < DEAD else ""
            return [f"the runtime accepts {first:.1%} of drafts, at least {least:.0%} is wanted{dead}"]
        ours = self.ours
        if ours is None or not ours.steps:
            return []
        error = rate_error(rate, self._steps(drafts))
        if not self.threshold.short(rate, error, ours.rate, rate_error(ours.rate, ours.steps)):
            return []
        return [
            f"the runtime accepts {rate:.1%} of drafts, our decoder {ours.rate:.1%} on the same texts: the runtime "
            "connects the head otherwise, or reads it otherwise"
        ]

    def _steps(self, drafts: Drafts) -> int:
        """Verify steps: as told, else every token but a prompt's first came from one, or was an accepted draft."""
        emitted = sum(len(row.mtp.tokens) - 1 for row in self.rows)
        return max(1, emitted - drafts.accepted if drafts.steps is None else drafts.steps)

    def to_json(self) -> dict[str, Any]:
        drafts = self.drafts
        failures = self.failures()
        return {
            "ok": not failures,
            "failures": failures,
            "name": self.name,
            "version": self.version,
            "how": self.how,
            "how_plain": self.how_plain,
            "k": self.k,
            "tokens": self.tokens,
            "runs": 1,
            "warm": True,
            "prompts": [row.to_json(number) for number, row in enumerate(self.rows, 1)],
            "aggregate": {
                "drafted": None if drafts is None else drafts.drafted,
                "accepted": None if drafts is None else drafts.accepted,
                "rate": None if drafts is None else drafts.rate,
                "steps": None if drafts is None else self._steps(drafts),
                "accepted_by_position": None if drafts is None else drafts.position,
                "tokens_per_second": {which: self.speed(which) for which in ("plain", "mtp")},
            },
            "ours": None if self.ours is None else self.ours.to_json(),
            "comparisons": [one.to_json() for one in self.comparisons],
            "excess": dict(self.excess),
            "notes": self.notes,
        }
