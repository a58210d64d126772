"""The texts of a runtime against each other, and against our decoder's reading of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mtptools.runtimes.asking import Answer
from mtptools.runtimes.generation import Generation
from mtptools.runtimes.grades import Comparison, Decode, divergence
from mtptools.runtimes.noise import Noise, differences
from mtptools.runtimes.reading import Reading

if TYPE_CHECKING:
    from mtptools.decoder.trace import DraftCounts

__all__ = ["MTP", "OURS", "PLAIN", "Compared", "against_ours", "first_difference", "mtp_against_plain"]

PLAIN, MTP, OURS = "without MTP", "with MTP", "our decoder"


@dataclass(frozen=True)
class Compared:
    """One prompt: what the runtime made of it, and our reading of each text, None where it was not read."""

    answer: Answer
    plain: Reading | None = None
    mtp: Reading | None = None

    @property
    def counts(self) -> DraftCounts | None:
        """Our head's drafts on the text that was written with MTP."""
        reading = self.mtp or self.plain
        return None if reading is None else reading.counts


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Number of the first token that differs; a text that merely ends earlier does not differ."""
    return next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)


def own_noise(found: Sequence[Compared]) -> Noise | None:
    """The runtime against itself: one token a pass against several, on the same text."""
    parts = []
    for one in found:
        answer = one.answer
        if answer.plain is None:
            continue
        parts += [differences(answer.plain.top[at], row) for at, row in answer.again.items()]
        first = first_difference(answer.plain.tokens, answer.mtp.tokens)
        rows = list(zip(answer.plain.top, answer.mtp.top, strict=False))[:first]
        parts += [differences(a, b) for a, b in rows]
    noise = Noise.of(parts, "the runtime, one token a pass against several")
    return noise if noise is not None and noise.rms > 0 else None  # none: other widths may still have some


def our_noise(found: Sequence[Compared]) -> Noise | None:
    """The runtime against our decoder where they agree."""
    parts = []
    for one in found:
        answer = one.answer
        made, reading = (answer.mtp, one.mtp) if answer.plain is None else (answer.plain, one.plain)
        if reading is None:
            continue
        rows = dict(enumerate(made.top)) | ({} if answer.plain is not None else dict(answer.again))
        parts += [
            differences(reading.logits[at], row) for at, row in rows.items() if made.tokens[at] == reading.best[at]
        ]
    return Noise.of(parts, "the runtime against our decoder")


def estimated_noise(found: Sequence[Compared]) -> Noise | None:
    """Our decoder against itself with disturbed layers."""
    readings = [reading for one in found for reading in (one.plain, one.mtp) if reading is not None]
    parts = [differences(a, b) for one in readings for a, b in zip(one.logits, one.disturbed, strict=True)]
    return Noise.of(parts, "our decoder, layers disturbed as bfloat16 rounds", measured=False)


def mtp_against_plain(found: Sequence[Compared], noise: Noise | None, decode: Decode) -> Comparison:
    """Does MTP change the runtime's text? Up to the first divergence of each prompt: after it the texts are others."""
    out = Comparison(MTP, PLAIN, True, noise)
    for number, one in enumerate(found, 1):
        plain, mtp = one.answer.plain, one.answer.mtp
        if plain is None:
            continue
        first = first_difference(plain.tokens, mtp.tokens)
        compared = min(len(plain.tokens), len(mtp.tokens)) if first is None else first + 1
        out.positions += compared
        _expect(out, (_own_margin(plain, one.plain, at) for at in range(compared)))
        if first is None:
            continue
        tokens = (plain.tokens[first], mtp.tokens[first])
        reading = one.plain
        margin = _between(plain.top[first], tokens)
        if margin is None and reading is not None:
            margin = _between(reading.logits[first], tokens)
        text = [*plain.prompt, *plain.tokens[:first]]
        rerouted = reading is not None and reading.may_reroute(first)
        out.divergences.append(divergence(number, first, text, tokens, margin, noise, decode, rerouted=rerouted))
    return out


def against_ours(found: Sequence[Compared], which: str, noise: Noise | None, decode: Decode) -> Comparison:
    """Every token of a text against the best one by our decoder, given the same tokens before.

    which  PLAIN, or MTP; a text with MTP that is that without is not read twice
    """
    out = Comparison(which, OURS, False, noise)
    for number, one in enumerate(found, 1):
        made, reading = (one.answer.plain, one.plain) if which == PLAIN else (one.answer.mtp, one.mtp)
        if made is None or reading is None:
            continue
        out.positions += len(made.tokens)
        _expect(out, (reading.margin(at) for at in range(len(made.tokens))))
        for at, token in enumerate(made.tokens):
            if token == reading.best[at]:
                continue
            tokens = (reading.best[at], token)
            margin = _between(reading.logits[at], tokens)
            text = [*made.prompt, *made.tokens[:at]]
            out.divergences.append(
                divergence(number, at, text, tokens, margin, noise, decode, rerouted=reading.may_reroute(at))
            )
    return out


def _expect(out: Comparison, margins: Iterable[float | None]) -> None:
    """Add the divergences that noise would make at positions with these margins; unknown ones add none."""
    if out.noise is None:
        return
    flips = out.noise.flips
    known = [margin for margin in margins if margin is not None]
    out.expected_flips = (out.expected_flips or 0.0) + sum(flips(margin) for margin in known)


def _own_margin(made: Generation, reading: Reading | None, at: int) -> float | None:
    """Best minus second: as the runtime tells, else as our decoder does."""
    row = made.top[at]
    others = [value for token, value in row.items() if token != made.tokens[at]]
    if made.tokens[at] in row and others:
        return row[made.tokens[at]] - max(others)
    return None if reading is None else reading.margin(at)


def _between(row: Mapping[int, float], tokens: tuple[int, int]) -> float | None:
    """The first one's logit minus the second's; where the second is not among those told, at least so much."""
    expected, found = tokens
    if expected not in row or len(row) < 2:
        return None
    return row[expected] - row.get(found, min(row.values()))
