"""A sweep of head types as a table to paste, as sentences, and as JSON."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from mtptools import __version__
from mtptools.ops.roofline import LEFT_OUT
from mtptools.plan import human_bytes
from mtptools.report.bench import conditions, markdown

if TYPE_CHECKING:  # torch is loaded by the decoder alone
    from mtptools.report.choice import Choice, Row, Sweep

__all__ = ["render", "to_json"]

SCHEMA: Final = 1


def to_json(sweep: Sweep) -> dict[str, Any]:
    choice = sweep.choice
    return {
        "schema": SCHEMA,
        "version": __version__,
        "path": sweep.path,
        "k": sweep.k,
        "tokens": sweep.n_tokens,
        "prompts": sweep.prompts,
        "prompts_digest": sweep.prompts_digest,
        "distinct": sweep.distinct,
        "tolerance": sweep.tolerance,
        "rows": [_row_json(row, choice) for row in sweep.rows],
        "best": choice.best.label,
        "reference": choice.reference.label,
        "wanted_mean_length": choice.wanted,
        "recommended": choice.chosen.label,
        "settled": choice.settled,
        "unsettled": [one.label for one in choice.unsettled],
        "alike": choice.alike,
        "model": {"speedup": f"bytes read, one request; left out: {LEFT_OUT}"},
        "fingerprint": sweep.fingerprint,
    }


def _row_json(row: Row, choice: Choice) -> dict[str, Any]:
    one = row.tried
    if one is None:
        return {"head": row.label, "why": row.why}
    away, error = choice.away(one)
    k, reads = one.measured.k, one.traffic
    return {
        "head": row.label,
        "type": one.name,
        "weighted": one.weighted,
        "head_bytes": reads.head,
        "draft_bytes": one.draft_bytes,
        "output_share": reads.output_share(k),
        "plain_token_bytes": reads.plain,
        "step_bytes": reads.step(k),
        "modelled_speedup": one.speedup,
        **one.measured.acceptance.to_json(),
        "standard_error": _known(one.measured.error),
        "difference": away,
        "difference_error": _known(error),
    }


def _known(error: float) -> float | None:
    return error if isfinite(error) else None


def _shown(error: float) -> str:
    return f"{error:.3f}" if isfinite(error) else "?"


def render(sweep: Sweep) -> str:
    """Markdown: what was decoded, the heads, what cannot be had, and which one to publish."""
    choice = sweep.choice
    lines = [
        f"sweep {sweep.path}",
        "",
        f"{sweep.prompts} prompts, {sweep.n_tokens} tokens each, {sweep.distinct:.0%} distinct, greedy, k={sweep.k}; "
        f"{conditions(sweep.fingerprint)}",
        "",
        *markdown(_table(sweep, choice)),
        "",
        f"± one standard error; difference: from {choice.reference.label}, on the same texts. a draft reads: the "
        f"head's matrices and the output matrix it drafts with. modelled speed-up: bytes read by one request; "
        f"{LEFT_OUT} left out",
    ]
    if not all(isfinite(one.measured.error) for one in sweep.tried):
        lines.append("± ?: of so few steps no error is known: more --tokens, or more prompts")
    lines += [f"{row.label}: cannot be had: {row.why}" for row in sweep.rows if row.tried is None]
    return "\n".join([*lines, "", *_advice(sweep, choice)])


def _table(sweep: Sweep, choice: Choice) -> list[list[str]]:
    positions = [f"pos {n + 1}" for n in range(sweep.k)]
    rows = [["head", "size", "a draft reads", "output", *positions, "mean length", "difference", "modelled speed-up"]]
    for one in sweep.tried:
        away, error = choice.away(one)
        rows.append(
            [
                one.label + (" *" if one is choice.chosen else ""),
                human_bytes(one.traffic.head),
                human_bytes(one.draft_bytes),
                f"{one.traffic.output_share(sweep.k):.0%}",
                *(f"{share:.1%}" for share in one.measured.acceptance.per_position),
                f"{one.measured.mean_length:.3f} ± {_shown(one.measured.error)}",
                "" if one is choice.reference else f"{away:+.3f} ± {_shown(error)}",
                f"{one.speedup:.2f}",
            ]
        )
    return rows


def _advice(sweep: Sweep, choice: Choice) -> list[str]:
    chosen, best, reference = choice.chosen, choice.best, choice.reference
    length = f"{reference.measured.mean_length:.3f}"
    doubt = "" if choice.settled else "not settled: "
    if chosen is reference:
        lines = [f"* {chosen.label} ({length}): no smaller head is within {sweep.tolerance:.1%} of it"]
    else:
        got, within = f"{chosen.measured.mean_length:.3f}", f"within {sweep.tolerance:.1%}"
        lines = [f"* {doubt}{chosen.label} ({got}) is the smallest head {within} of {reference.label} ({length})"]
    if best is not reference:
        lines.append(f"{best.label} ({best.measured.mean_length:.3f}) got most, by no more than chance")
    if choice.alike:
        lines.append(f"these prompts cannot tell any head from {reference.label}: more --tokens, or more prompts")
    elif choice.unsettled:
        named = "; ".join(f"{one.label} ({one.measured.mean_length:.3f})" for one in choice.unsettled)
        lines.append(
            f"not settled by these prompts, too near to {choice.wanted:.3f}: {named}: more --tokens, or more prompts"
        )
    return lines
