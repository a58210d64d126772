"""Token counts of text that a model generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from mtptools.errors import InputError
from mtptools.vocab.counting import Counted

__all__ = ["EVERY_PROMPT", "counted_texts", "is_held", "pooled"]

T = TypeVar("T")

EVERY_PROMPT: Final = 5
"""What is written after one prompt in so many is held out, see `is_held`."""
REST: Final = "model"  # the domain of prompts without a category, and of categories too small for one


def pooled(prompts: Sequence[tuple[str, T]]) -> dict[str, list[T]]:
    """(category, prompt) by category; those with fewer than EVERY_PROMPT prompts together, as the domain REST.

    Raises InputError where a domain would be one prompt alone: nothing of it could be held out.
    """
    found: dict[str, list[T]] = {}
    for category, prompt in prompts:
        found.setdefault(category or REST, []).append(prompt)
    small = [name for name, some in found.items() if len(some) < EVERY_PROMPT and name != REST]
    rest = [*found.pop(REST, []), *(prompt for name in small for prompt in found.pop(name))]
    if rest:
        found[REST] = rest
    if any(len(some) < 2 for some in found.values()):
        raise InputError(
            "one prompt alone: what its text is covered by cannot be held out",
            hint="give more prompts of each category, some dozens, or one category for all",
        )
    return found


def is_held(number: int, count: int) -> bool:
    """Is text `number` of `count` held out? Every fifth, and of fewer the last one."""
    return number % EVERY_PROMPT == EVERY_PROMPT - 1 if count >= EVERY_PROMPT else number == count - 1


def counted_texts(texts: Mapping[str, Sequence[Sequence[int]]], size: int) -> list[Counted]:
    """Counts of token ids, domain by domain; texts by the number of their prompt, see `is_held`."""
    return [_counted(domain, some, size) for domain, some in texts.items()]


def _counted(domain: str, texts: Sequence[Sequence[int]], size: int) -> Counted:
    parts = {True: np.zeros(size, np.int64), False: np.zeros(size, np.int64)}
    for number, ids in enumerate(texts):
        parts[is_held(number, len(texts))] += np.bincount(np.asarray(ids, np.int64), minlength=size)
    return Counted(domain, parts[False], parts[True], len(texts), 0)
