"""Draft counters in a server's /metrics (Prometheus text), read before and after a prompt.

llama.cpp and vLLM name them alike: `spec_decode_num_*_total` after a prefix of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mtptools.runtimes.generation import Drafts

__all__ = ["Counters", "counters", "difference"]

Counters = Mapping[tuple[str, str], float]
"""(name without prefix, draft position or "") -> value, summed over other labels."""

_LINE: Final = re.compile(
    r"^(?:[A-Za-z0-9_]+:)?(\w+?)(?:_total)?(?:\{(.*)\})?\s+([-+0-9.eE]+|NaN|[-+]?Inf)(?:\s+\d+)?$"
)
_POSITION: Final = re.compile(r'\bposition="(\d+)"')
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
        position = _POSITION.search(labels or "")
        key = (name.removeprefix("spec_decode_num_"), position[1] if position else "")
        found[key] = found.get(key, 0.0) + float(value)
    return found


def difference(before: Counters, after: Counters, tokens: int) -> Drafts | None:
    """Drafts between two pages; None where nothing is counted, or where somebody else was served in between.

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
    return Drafts(gained("draft_tokens"), gained("accepted_tokens"), steps, by_position or None)
