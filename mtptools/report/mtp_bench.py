"""Acceptance in the columns that people paste from `mtp-bench.py` (am17an's script for llama-server)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

__all__ = ["OWN_SPEED", "PromptRow", "aggregate", "mtp_bench", "prompt_rows", "whole"]

NAME: Final = 18
OWN_SPEED: Final = (
    "Times are of this tool's decoder, without the prompt's pass: they compare k with k, "
    "and are no measure of a runtime."
)


@dataclass(frozen=True, slots=True)
class PromptRow:
    """One prompt at one k: tokens that came out, drafts made and accepted, seconds (None: not measured).

    The first token comes from the prompt's pass: `speed` is of those after it, and so are the seconds.
    prompts  how many it stands for
    """

    name: str
    predicted: int
    drafted: int
    accepted: int
    seconds: float | None
    prompts: int = 1

    @property
    def rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def speed(self) -> float | None:
        return (self.predicted - self.prompts) / self.seconds if self.seconds else None

    def cells(self) -> list[str]:
        """pred, draft, acc, rate, tok/s."""
        rate = "n/a" if self.rate is None else f"{self.rate:.3f}"
        speed = "n/a" if self.speed is None else f"{self.speed:.1f}"
        return [str(self.predicted), str(self.drafted), str(self.accepted), rate, speed]

    def line(self) -> str:
        """As the script prints it."""
        pred, draft, acc, rate, speed = self.cells()
        return f"  {self.name:<{NAME}} pred={pred:>4} draft={draft:>4} acc={acc:>4} rate={rate} tok/s={speed}"


def prompt_rows(decoder: Mapping[str, Any], k: int | None = None) -> tuple[int, list[PromptRow]] | None:
    """(k, rows) from the `decoder` part of a verification or a bench; None when it has no counts per prompt.

    k  None takes the one that was best in a bench, else the largest up to 3
    """
    prompts, ks = decoder.get("per_prompt") or (), [int(row["k"]) for row in decoder.get("acceptance") or ()]
    if not prompts or not ks:
        return None
    chosen = k or decoder.get("best_k") or max([one for one in ks if one <= 3] or ks[:1])
    rows, seen = [], dict[str, int]()
    for number, prompt in enumerate(prompts, 1):
        arm = next((arm for arm in prompt["arms"] if arm["k"] == chosen and "drafted" in arm), None)
        if arm is None:
            return None
        name = str(prompt.get("category") or f"prompt_{number}")
        seen[name] = seen.get(name, 0) + 1
        name = name if seen[name] == 1 else f"{name}_{seen[name]}"
        emitted = prompt.get("emitted_tokens")
        count = len(prompt["emitted"]) if emitted is None else int(emitted)
        seconds = median(arm["seconds"]) if arm.get("seconds") else None
        rows.append(PromptRow(name, count, sum(arm["drafted"]), sum(arm["accepted"]), seconds))
    return chosen, rows


def whole(rows: Sequence[PromptRow]) -> PromptRow:
    """All of them as one; no seconds unless those of each are known."""
    known = [row.seconds for row in rows if row.seconds is not None]
    return PromptRow(
        "all",
        sum(row.predicted for row in rows),
        sum(row.drafted for row in rows),
        sum(row.accepted for row in rows),
        sum(known) if len(known) == len(rows) else None,
        len(rows),
    )


def aggregate(rows: Sequence[PromptRow]) -> str:
    """The object that the script prints last."""
    found = whole(rows)
    record = {
        "n_requests": len(rows),
        "total_predicted": found.predicted,
        "total_draft": found.drafted,
        "total_draft_accepted": found.accepted,
        "aggregate_accept_rate": None if found.rate is None else round(found.rate, 4),
        "wall_s_total": None if found.seconds is None else round(found.seconds, 2),
    }
    return json.dumps(record, indent=2)


def mtp_bench(rows: Sequence[PromptRow]) -> str:
    """The lines and the aggregate, as the script prints them."""
    return "\n".join([*(row.line() for row in rows), "", f"Aggregate: {aggregate(rows)}"])
