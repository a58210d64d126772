"""From a runtime's answers, and our decoder where there is one, to a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mtptools.runtimes.asking import Answer, Answers, Say
from mtptools.runtimes.compare import (
    MTP,
    PLAIN,
    Compared,
    against_ours,
    estimated_noise,
    first_difference,
    mtp_against_plain,
    our_noise,
    own_noise,
)
from mtptools.runtimes.grades import Decode
from mtptools.runtimes.report import Row, RuntimeReport

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.model import Model

__all__ = ["judge"]


def judge(
    answers: Answers, model: Model | None, decode: Decode, categories: Sequence[str], notes: Sequence[str], say: Say
) -> RuntimeReport:
    """model: our decoder, None to compare the runtime with itself alone; notes: why, and what else is left out."""
    found = [_read(model, one, answers.k, say, number) for number, one in enumerate(answers.prompts, 1)]
    own, ours, size = own_noise(found), our_noise(found), estimated_noise(found)
    report = RuntimeReport(
        answers.name,
        answers.version,
        answers.how,
        answers.how_plain,
        answers.k,
        answers.tokens,
        [_row(one, category) for one, category in zip(found, categories, strict=True)],
        notes=list(notes),
    )
    if answers.how_plain is not None:
        report.comparisons.append(mtp_against_plain(found, own or ours or size, decode))
    for which in (PLAIN, MTP):
        compared = against_ours(found, which, ours or size, decode)
        if compared.positions:
            report.comparisons.append(compared)
    if size is not None and size.rms:
        report.excess = [(one.source, one.rms / size.rms) for one in (own, ours) if one is not None]
    if ours is None and model is not None:
        report.notes.append("the runtime gives no log-probabilities: noise is estimated, not measured")
    if not report.comparisons:
        report.notes.append("no text was compared with another: drafts and counts are all that was checked")
    report.ours = _acceptance(found, answers.k)
    return report


def _read(model: Model | None, answer: Answer, k: int, say: Say, number: int) -> Compared:
    """Our decoder on both texts; one reading serves for both where they are the same."""
    if model is None:
        return Compared(answer)
    from mtptools.runtimes.teacher import read

    say(f"our decoder reads prompt {number}")
    plain, mtp = answer.plain, answer.mtp
    if plain is None:
        return Compared(answer, mtp=read(model, mtp, k))
    first = first_difference(plain.tokens, mtp.tokens)
    reading = read(model, plain, k, None if first is None else {first: mtp.tokens[first]})
    return Compared(answer, reading, None if plain.tokens == mtp.tokens else read(model, mtp, k))


def _row(one: Compared, category: str) -> Row:
    counts = one.counts
    ours = None if counts is None else (sum(counts.drafted), sum(counts.accepted))
    return Row(category, one.answer.plain, one.answer.mtp, ours)


def _acceptance(found: Sequence[Compared], k: int) -> Acceptance | None:
    """Our head's on the texts written with MTP; None where none was read."""
    known = [one.counts for one in found if one.counts is not None]
    if not known:
        return None
    from mtptools.decoder.acceptance import total

    return total(k, known)
