"""L5 as text: the table that people paste, then what differs."""

from __future__ import annotations

from mtptools.runtimes.grades import DEFECT, NEAR_TIE, ROUTER_TIE, UNKNOWN, Comparison
from mtptools.runtimes.report import RuntimeReport

__all__ = ["runtime_lines", "runtime_table"]

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
    lines += ["", *runtime_table(report), "", *_speed(report), *_drafts(report)]
    for one in report.comparisons:
        lines += _comparison(one)
    lines += [f"               {note}" for note in report.notes]
    return lines


def runtime_table(report: RuntimeReport) -> list[str]:
    """A Markdown table: one row a prompt, then all of them; the columns are those of mtp-bench, and ours beside."""
    with_plain = report.how_plain is not None
    head = ["prompt", "pred", "draft", "acc", "rate", "tok/s"]
    head += (["tok/s without"] if with_plain else []) + (["our rate"] if report.ours is not None else [])
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for number, row in enumerate(report.rows, 1):
        drafts = row.mtp.drafts
        counts = ["?"] * 3 if drafts is None else [str(drafts.drafted), str(drafts.accepted), f"{drafts.rate:.3f}"]
        cells = [row.category or str(number), str(len(row.mtp.tokens)), *counts, f"{row.mtp.tokens_per_second:.1f}"]
        if with_plain:
            cells.append("" if row.plain is None else f"{row.plain.tokens_per_second:.1f}")
        if report.ours is not None:
            cells.append("" if row.ours is None or not row.ours[0] else f"{row.ours[1] / row.ours[0]:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    drafts, speed, plain = report.drafts, report.speed("mtp"), report.speed("plain")
    counts = ["?"] * 3 if drafts is None else [str(drafts.drafted), str(drafts.accepted), f"{drafts.rate:.3f}"]
    cells = ["**all**", str(sum(len(row.mtp.tokens) for row in report.rows)), *counts]
    cells.append("" if speed is None else f"{speed:.1f}")
    cells += ["" if plain is None else f"{plain:.1f}"] if with_plain else []
    cells += [f"{report.ours.rate:.3f}"] if report.ours is not None else []
    return [*lines, "| " + " | ".join(cells) + " |"]


def _speed(report: RuntimeReport) -> list[str]:
    fast, plain = report.speed("mtp"), report.speed("plain")
    if fast is None or plain is None:
        return []
    return [
        f"speed          {fast / plain:.2f} times that without MTP (one run after a warm-up, one request at a time)"
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
