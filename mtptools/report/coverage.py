"""What draft vocabularies of several sizes cover, as a table to paste and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any, Final

import numpy as np

from mtptools import __version__
from mtptools.report.bench import markdown
from mtptools.vocab.counting import Counted
from mtptools.vocab.coverage import Coverage, K, curve, unseen_counts
from mtptools.vocab.ranking import TARGET, Ranking

__all__ = ["LOW", "name_of", "notes", "render", "to_json"]

SCHEMA: Final = 1

LOW: Final = 0.95
"""Held-out coverage below which a domain is named: people who cut that far got slower, not faster, on such text."""

FEW: Final = 1000
"""Held-out tokens below which 99.5 % cannot be told from 98 %."""

_NAME: Final = 20  # letters of a domain's name
_WIDTH: Final = 100  # columns of a terminal
_COLUMNS: Final = 6  # sizes side by side within it
_POINTS: Final = 100  # of a curve


def name_of(size: int) -> str:
    """65536 is `64k`, as `--size` takes it."""
    return f"{size // K}k" if size >= K and size % K == 0 else f"{size}"


def render(chosen: Coverage, others: Sequence[Coverage] = (), ranking: Ranking | None = None) -> str:
    """Domains by sizes, the chosen size marked; then what to mind.

    others   of the same domains and the same ranking, at other sizes
    ranking  that all of them were cut from, if one was
    """
    shown = _shown(chosen, others)
    marks = [name_of(one.size) + " *" * (one is chosen) for one in shown]
    rows = [["held-out coverage", "tokens", *marks]]
    for number, domain in enumerate(chosen.domains):
        name = _short(domain.domain) if domain.weight else f"({_short(domain.domain)})"
        rows.append([name, f"{domain.tokens:,}", *(_share(one.domains[number].held) for one in shown)])
    if sum(1 for one in chosen.domains if one.weight) > 1:
        rows.append(["overall", "", *(_share(one.overall) for one in shown)])
    rows.append(["worst", "", *(_share(one.worst.held) for one in shown)])
    told = [f"* {chosen.size:,} of {chosen.of:,} tokens, {chosen.size / chosen.of:.1%}"]
    if not all(one.weight for one in chosen.domains):
        told.append("( ) of weight 0: looked at, counted neither in the choice nor in the last two lines")
    told += notes(chosen, ranking)
    return "\n".join(
        [
            *markdown(rows),
            "",
            *(line for one in told for line in wrap(one, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)),
        ]
    )


def notes(chosen: Coverage, ranking: Ranking | None = None) -> list[str]:
    """What a person should hear before the head is cut so; nothing when all is well."""
    out = []
    low = [one for one in sorted(chosen.domains, key=lambda one: one.held) if one.held < LOW]
    if low:
        named = ", ".join(f"{_short(one.domain)} {1 - one.held:.1%}" for one in low)
        out.append(f"tokens that cannot be drafted: {named}; such text may get slower: measure before you publish")
    few = [f"{_short(one.domain)} {one.tokens:,}" for one in chosen.domains if one.tokens < FEW]
    if few:
        out.append(f"few held-out tokens, which say little of the last per cent: {', '.join(few)}")
    if ranking is not None and chosen.size > ranking.seen:
        out.append(
            f"{chosen.size - ranking.seen:,} of the tokens occur nowhere in the text; they are those with the lowest "
            "ids: more --corpus says better which"
        )
    return out


def to_json(
    chosen: Coverage,
    others: Sequence[Coverage] = (),
    ranking: Ranking | None = None,
    counted: Sequence[Counted] = (),
) -> dict[str, Any]:
    """counted  of the domains of `chosen`, in any order: with a ranking, held-out coverage at about 100 sizes"""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "size": chosen.size,
        "vocabulary": chosen.of,
        "kept": ranking.kept if ranking else None,
        "seen": ranking.seen if ranking else None,
        "target": TARGET,
        "meets_target": chosen.worst.held >= TARGET,
        "notes": notes(chosen, ranking),
        "sizes": [_size_json(one) for one in _shown(chosen, others, None)],
        "curve": _curve_json(chosen, ranking, counted) if ranking and counted else None,
    }


def _curve_json(chosen: Coverage, ranking: Ranking, counted: Sequence[Counted]) -> dict[str, Any]:
    """Sizes from what is always kept to all, even in their logarithm."""
    weights = {one.domain: one.weight for one in chosen.domains}
    sizes = np.unique(np.geomspace(max(ranking.kept, 1), len(ranking.ids), _POINTS).round().astype(np.int64))
    domains = [
        {"domain": one.domain, "held": curve(ranking.ids, unseen_counts(one, weights[one.domain]))[sizes].tolist()}
        for one in counted
    ]
    return {"sizes": sizes.tolist(), "domains": domains}


def _size_json(coverage: Coverage) -> dict[str, Any]:
    domains = [
        {"domain": one.domain, "weight": one.weight, "held": one.held, "train": one.train, "held_tokens": one.tokens}
        for one in coverage.domains
    ]
    worst = coverage.worst
    return {
        "size": coverage.size,
        "domains": domains,
        "overall": coverage.overall,
        "worst": {"domain": worst.domain, "held": worst.held},
    }


def _shown(chosen: Coverage, others: Sequence[Coverage], most: int | None = _COLUMNS) -> list[Coverage]:
    """By size, the chosen one among them; where there are too many the ones farthest from it are left out."""
    near = sorted({one.size: one for one in others}.values(), key=lambda one: (abs(one.size - chosen.size), one.size))
    near = [one for one in near if one.size != chosen.size]
    return sorted([chosen, *near[: None if most is None else most - 1]], key=lambda one: one.size)


def _share(value: float) -> str:
    """Never rounded up to 100 %."""
    return "100%" if value >= 1 else f"{min(value, 0.9999):.2%}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"
