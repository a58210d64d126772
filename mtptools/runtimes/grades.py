"""One place where two texts part, and what it is worth: a tie, or a defect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from mtptools.runtimes.noise import Noise, poisson_tail

__all__ = ["DEFECT", "EXCESS", "NEAR_TIE", "ROUTER_TIE", "UNKNOWN", "Comparison", "Divergence", "grade"]

NEAR_TIE: Final = "near-tie"
ROUTER_TIE: Final = "router-tie"
DEFECT: Final = "defect"
UNKNOWN: Final = "unknown"

CHANCE: Final = 1e-6
"""More divergences than noise makes, at this probability, are a defect even if each is a tie."""

EXCESS: Final = 25.0
"""Times the noise of disturbed layers that an engine may have."""

BEFORE: Final = 48  # characters of text shown before a divergence

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Divergence:
    """prompt: its number from 1;  at: number of the emitted token, from 0
    margin: logit of the one token minus that of the other where the text before is the same; None: not told
    noise: the margin that noise may turn over;  before, expected, found: text, the token there, and in its place
    """

    prompt: int
    at: int
    margin: float | None
    noise: float | None
    grade: str
    before: str
    expected: str
    found: str
    tokens: tuple[int, int]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        told = "margin unknown" if self.margin is None else f"margin {self.margin:.3g}"
        told += "" if self.noise is None else f", noise {self.noise:.2g}"
        return (
            f"prompt {self.prompt}, token {self.at}: {self.found!r} for {self.expected!r} after "
            f"{self.before!r} ({told}): {self.grade}"
        )


@dataclass
class Comparison:
    """found against expected, over all prompts.

    positions  that were compared;  expected_flips  how many divergences noise would make there, None: not known
    same_text  each text only up to its first divergence; else every position of it, given the same text before
    noise      None where nothing told of it
    """

    found: str
    expected: str
    same_text: bool
    noise: Noise | None
    positions: int = 0
    expected_flips: float | None = None
    divergences: list[Divergence] = field(default_factory=list)

    @property
    def chance(self) -> float | None:
        """Probability of so many divergences from noise alone."""
        return None if self.expected_flips is None else poisson_tail(len(self.divergences), self.expected_flips)

    @property
    def systematic(self) -> bool:
        return self.chance is not None and self.chance < CHANCE

    def failures(self) -> list[str]:
        out = []
        for word in (DEFECT, UNKNOWN):
            ones = [one for one in self.divergences if one.grade == word]
            if ones:
                more = f", and {len(ones) - 1} more" if len(ones) > 1 else ""
                out.append(f"{self.found} differs from {self.expected}: {ones[0]}{more}")
        if self.systematic:
            out.append(
                f"{self.found} differs from {self.expected} {len(self.divergences)} times in {self.positions} tokens, "
                f"noise explains {self.expected_flips:.2g} (chance {self.chance:.0e}): a defect, though each is small"
            )
        return out

    def to_json(self) -> dict[str, Any]:
        noise = self.noise
        told = {"source": noise.source, "rms": noise.rms, "quantile": noise.quantile} if noise is not None else None
        return {
            "found": self.found,
            "expected": self.expected,
            "same_text": self.same_text,
            "positions": self.positions,
            "expected_flips": self.expected_flips,
            "chance": self.chance,
            "systematic": self.systematic,
            "noise": None if told is None or noise is None else {**told, "samples": int(noise.samples.size)},
            "divergences": [one.to_json() for one in self.divergences],
        }


def grade(margin: float | None, noise: Noise | None, *, rerouted: bool) -> str:
    """rerouted: a router is close to a tie at that position. An estimated noise tells ties and gross defects apart."""
    if margin is None or noise is None:
        return UNKNOWN
    if margin <= noise.quantile:
        return NEAR_TIE
    if rerouted:
        return ROUTER_TIE
    if noise.measured or margin > EXCESS * noise.quantile:
        return DEFECT
    return UNKNOWN


def divergence(
    prompt: int,
    at: int,
    text: Sequence[int],
    tokens: tuple[int, int],
    margin: float | None,
    noise: Noise | None,
    decode: Decode,
    *,
    rerouted: bool,
) -> Divergence:
    """text: prompt and emitted tokens before; tokens: (expected, found)."""
    return Divergence(
        prompt,
        at,
        margin,
        None if noise is None else noise.quantile,
        grade(margin, noise, rerouted=rerouted),
        decode(text)[-BEFORE:],
        decode(tokens[:1]),
        decode(tokens[1:]),
        tokens,
    )
