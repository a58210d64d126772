"""L5 as text: the table that people paste, then what differs."""

from __future__ import annotations

from mtptools.report.markdown import table_markdown
from mtptools.report.sections.runtime import runtime_table
from mtptools.runtimes.grades import DEFECT, NEAR_TIE, ROUTER_TIE, UNKNOWN, Comparison
from mtptools.runtimes.report import RuntimeReport

__all__ = ["runtime_lines"]

SHOWN = 5  # divergences of one comparison


def runtime_lines(report: RuntimeReport) -> list[str]:
    """Lines for a terminal, that are Markdown too."""
    lines = [
        f"L5 runtime     {'pass' if not report.failures() else 'fail'}: {report.name} {report.version}, k={report.k}, "
        f"{len(report.rows)} prompts, {report.tokens} tokens each, greedy",
        f"               with MTP: {report.how}",
    ]
    if report.how_plain is not None:
        lines.append(f"               without:  {report.how_plain}")
    lines += ["", *table_markdown(runtime_table(report.to_json())), "", *_speed(report), *_drafts(report)]
    for one in report.comparisons:
        lines += _comparison(one)
    lines += [f"               {note}" for note in report.notes]
    return lines


def _speed(report: RuntimeReport) -> list[str]:
    fast, plain = report.speed("mtp"), report.speed("plain")
    if fast is None or plain is None:
        return []
    return [
        f"speed          {fast / plain:.2f} times that without MTP, in the median of the prompts "
        "(one run of each after a warm-up, one request at a time)"
    ]


def _drafts(report: RuntimeReport) -> list[str]:
    drafts = report.drafts
    if drafts is None or not drafts.position or not drafts.steps:
        return []
    theirs = ", ".join(f"{accepted / drafts.steps:.1%}" for accepted in drafts.position)
    ours = "" if report.ours is None else f"; ours {', '.join(f'{one:.1%}' for one in report.ours.per_position)}"
    return [f"by position    {theirs} of {drafts.steps} steps{ours}"]


def _comparison(one: Comparison) -> list[str]:
    counts = {word: sum(1 for it in one.divergences if it.grade == word) for word in _WORDS}
    told = ", ".join(f"{n} {word}" for word, n in counts.items() if n) or "no divergence"
    expected = "" if one.expected_flips is None else f"; noise would make {one.expected_flips:.2g}"
    lines = [f"{one.found} : {one.expected}  {told} in {one.positions} tokens{expected}"]
    if one.noise is not None:
        lines.append(f"               noise {one.noise.quantile:.2g} ({one.noise.source})")
    worst = sorted(one.divergences, key=lambda it: (_WORDS.index(it.grade), it.prompt, it.at))
    lines += [f"               {it}" for it in worst[:SHOWN]]
    if len(worst) > SHOWN:
        lines.append(f"               and {len(worst) - SHOWN} more")
    return lines


_WORDS = (DEFECT, UNKNOWN, ROUTER_TIE, NEAR_TIE)
