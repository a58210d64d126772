"""Draft counters in a server's /metrics (Prometheus text), read before and after a prompt.

llama.cpp and vLLM name them alike: `spec_decode_num_*_total` after a prefix of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mtptools.runtimes.generation import Drafts
from mtptools.runtimes.values import MOST

__all__ = ["Counters", "counters", "difference"]

Counters = Mapping[tuple[str, str], float]
"""(name without prefix, draft position or "") -> value, summed over other labels."""

_LINE: Final = re.compile(r"^(?:[A-Za-z0-9_]+:)?(\w+?)(?:_total)?(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
_POSITION: Final = re.compile(r'\bposition="(\d{1,4})"')
_EMITTED: Final = ("tokens_predicted", "generation_tokens")


def counters(text: str) -> Counters:
    """The draft counters of a page, and the count of emitted tokens as "emitted"."""
    found: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        parsed = _LINE.match(line)
        if parsed is None:
            continue
        name, labels, value = parsed.groups()
        if name in _EMITTED:
            name = "emitted"
        elif not name.startswith("spec_decode_num_"):
            continue
        if (counted := _count(value)) is None:
            continue
        position = _POSITION.search(labels or "")
        key = (name.removeprefix("spec_decode_num_"), position[1] if position else "")
        found[key] = found.get(key, 0.0) + counted
    return found


def _count(value: str) -> float | None:
    """None for what no counter holds: NaN, an infinity, less than nothing, no number at all."""
    try:
        found = float(value)
    except ValueError:
        return None
    return found if 0 <= found <= MOST else None


def difference(before: Counters, after: Counters, tokens: int) -> Drafts | None:
    """Drafts between two pages; None where nothing is counted, where somebody else was served in between, or where
    counts contradict each other: a server that was started again counts from nothing.

    tokens  that were emitted for us in between
    """

    def gained(name: str, position: str = "") -> int:
        return round(after.get((name, position), 0.0) - before.get((name, position), 0.0))

    if ("draft_tokens", "") not in after:
        return None
    if ("emitted", "") in after and gained("emitted") > tokens:
        return None
    positions = sorted({int(at) for name, at in after if name == "accepted_tokens_per_pos" and at})
    by_position = tuple(gained("accepted_tokens_per_pos", str(at)) for at in positions)
    steps = gained("drafts") if ("drafts", "") in after else None
    drafted, accepted = gained("draft_tokens"), gained("accepted_tokens")
    if not 0 <= accepted <= drafted or (steps is not None and steps < 0):
        return None
    if any(not 0 <= one <= (drafted if steps is None else steps) for one in by_position):
        return None
    return Drafts(drafted, accepted, steps, by_position or None)
