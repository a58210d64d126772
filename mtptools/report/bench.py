"""A bench as tables to paste, and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mtptools import __version__

if TYPE_CHECKING:  # torch is loaded by the decoder alone
    from mtptools.decoder.bench import Bench, Gain

__all__ = ["category_name", "conditions", "failures", "markdown", "render", "to_json"]

SCHEMA: Final = 1


def failures(bench: Bench) -> list[str]:
    """Runs whose output is not that of plain decoding."""
    return [
        f"{result.arm} differs from token {result.first_difference} on "
        f"({'tokens agree, logits do not' if result.same_tokens else 'other tokens'})"
        for result in bench.parity
        if not result.equal
    ]


def to_json(bench: Bench, path: str) -> dict[str, Any]:
    """`decoder` has what `verify --baseline` reads, too."""
    found = failures(bench)
    return {
        "schema": SCHEMA,
        "version": __version__,
        "path": path,
        "ok": not found,
        "failures": found,
        "decoder": bench.to_json(),
    }


def category_name(category: str | None) -> str:
    """None is all prompts; a prompt may have no category among others that do."""
    return "all" if category is None else category or "(none)"


def conditions(told: Mapping[str, Any]) -> str:
    """A fingerprint in a few words: what times, and bits, depend on."""
    place = told.get("gpu") or f"{told['cpu_capability']}, {told['threads']} thread{'s' * (told['threads'] != 1)}"
    return f"{told['dtype']} on {told['device']} ({place}), torch {told['torch']}"


def render(bench: Bench, path: str) -> str:
    """Markdown: speed, acceptance and conditional acceptance per k, categories; then the best k."""
    found = failures(bench)
    rows = sum(result.compared for result in bench.parity)
    same = "DIFFERS from plain decoding" if found else "that of plain decoding"
    lines = [
        f"bench {path}",
        "",
        f"{len(bench.prompts)} prompts, {bench.n_tokens} tokens each, greedy; {conditions(bench.fingerprint)}",
        f"seconds: medians of {bench.runs} run{'s' * (bench.runs != 1)}, arms in rotation after a warm-up, without the "
        "prompt's pass",
        f"output: {same}, {rows} logits rows compared bit for bit",
        "",
        *markdown(_speed(bench)),
        "",
        "accepted, of the steps that drafted the position:",
        "",
        *markdown(_by_position(bench, lambda gain: gain.acceptance.per_position)),
        "",
        "accepted, of the steps in which all before it were:",
        "",
        *markdown(_by_position(bench, lambda gain: gain.acceptance.conditional)),
        "",
    ]
    if bench.categories:
        lines += ["mean length by category:", "", *markdown(_lengths(bench)), ""]
        lines += ["speedup by category:", "", *markdown(_speedups(bench)), ""]
    best = bench.best()
    fastest = "none: plain decoding is faster here" if best is None else f"{best.k}, {best.speedup:.2f} times as fast"
    lines.append(f"best k of those measured: {fastest}")
    lines += [f"FAIL  {line}" for line in found]
    return "\n".join(lines)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table whose columns are aligned, the first to the left; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("| " + " | ".join(cells) + " |")
    rule = ["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]
    return [lines[0], "|" + "|".join(rule) + "|", *lines[1:]]


def _speed(bench: Bench) -> list[list[str]]:
    rows = [["k", "mean length", "rate", "tokens/s", "speedup", "of single runs", "step costs"]]
    rows.append(["plain", "1.00", "", f"{bench.plain_tokens_per_second():.1f}", "1.00", "", "1.00"])
    for gain in bench.gains():
        one, speeds = gain.acceptance, f"{gain.least:.2f} - {gain.most:.2f}"
        rows.append([str(gain.k), f"{one.mean_length:.2f}", f"{one.rate:.1%}", f"{gain.tokens_per_second:.1f}"])
        rows[-1] += [f"{gain.speedup:.2f}", speeds, f"{gain.cost:.2f}"]
    return rows


def _by_position(bench: Bench, values: Callable[[Gain], Sequence[float]]) -> list[list[str]]:
    deepest = max(bench.ks)
    rows = [["k", *(f"pos {n + 1}" for n in range(deepest))]]
    for gain in bench.gains():
        cells = [f"{value:.1%}" for value in values(gain)]
        rows.append([str(gain.k), *cells, *[""] * (deepest - len(cells))])
    return rows


def _lengths(bench: Bench) -> list[list[str]]:
    rows = [["category", "prompts", *(f"k={k}" for k in bench.ks)]]
    for category in (*bench.categories, None):
        lengths = [f"{gain.acceptance.mean_length:.2f}" for gain in bench.gains(category)]
        rows.append([category_name(category), str(len(bench.of(category))), *lengths])
    return rows


def _speedups(bench: Bench) -> list[list[str]]:
    rows = [["category", "plain/s", *(f"k={k}" for k in bench.ks), "best k"]]
    for category in (*bench.categories, None):
        plain, best = bench.plain_tokens_per_second(category), bench.best(category)
        speedups = [f"{gain.speedup:.2f}" for gain in bench.gains(category)]
        rows.append([category_name(category), f"{plain:.1f}", *speedups, str(best.k) if best else "plain"])
    return rows
