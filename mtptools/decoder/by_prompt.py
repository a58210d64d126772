"""Counts of drafts prompt by prompt, and what they say per category of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtptools.decoder.acceptance import Acceptance, total
from mtptools.decoder.trace import DraftCounts, Trace

__all__ = ["PromptCounts", "by_category"]


@dataclass
class PromptCounts:
    """One prompt decoded greedily: per k (0 is plain) the seconds of its one run, and counts of its drafts."""

    prompt_tokens: int
    category: str = ""
    emitted: int = 0
    seconds: dict[int, float] = field(default_factory=dict)
    drafts: dict[int, DraftCounts] = field(default_factory=dict)

    def add(self, k: int, trace: Trace) -> None:
        """An arm's trace; k = 0 is the plain one."""
        self.emitted = len(trace.tokens)
        self.seconds[k] = trace.decode_seconds
        if k:
            self.drafts[k] = trace.drafts

    def to_json(self) -> dict[str, Any]:
        """As `bench` writes a prompt: an arm has `k` and `seconds`, a list of runs; here of one."""
        arms = [
            {"k": k, "seconds": [seconds], **(total(k, [self.drafts[k]]).to_json() if k in self.drafts else {})}
            for k, seconds in self.seconds.items()
        ]
        return {
            "category": self.category,
            "prompt_tokens": self.prompt_tokens,
            "emitted_tokens": self.emitted,
            "arms": arms,
        }


def by_category(categories: Sequence[str], counts: Mapping[int, Sequence[DraftCounts]]) -> dict[str, list[Acceptance]]:
    """Acceptance per k of each category, in the order of their first prompt; empty when all are of one.

    categories  one a prompt;  counts  per k, one a prompt
    """
    names = list(dict.fromkeys(categories))
    if len(names) < 2:
        return {}
    return {
        name: [
            total(k, [one for one, of in zip(found, categories, strict=True) if of == name])
            for k, found in counts.items()
        ]
        for name in names
    }
