"""Are two traces the same, bit for bit? Tokens can agree where logits do not, so logits are what is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from mtptools.decoder.trace import Trace

__all__ = ["Context", "Parity", "compare"]

BEFORE: Final = 24
AFTER: Final = 8
"""Tokens shown before a difference and from there on."""


@dataclass(frozen=True, slots=True)
class Context:
    """Ids of the tokens before a difference, and of what each arm emitted from there on.

    text  the same three as text, when a tokenizer was at hand
    """

    before: tuple[int, ...]
    plain: tuple[int, ...]
    other: tuple[int, ...]
    text: tuple[str, str, str] | None = None

    @classmethod
    def at(cls, plain: Trace, other: Trace, first: int) -> Context:
        read = len(plain.prompt) + first
        before = (plain.prompt + plain.tokens)[max(0, read - BEFORE) : read]
        ours, theirs = (tuple(trace.tokens[first : first + AFTER]) for trace in (plain, other))
        return cls(tuple(before), ours, theirs)

    def read(self, decode: Callable[[Sequence[int]], str]) -> Context:
        """With its text."""
        return replace(self, text=(decode(self.before), decode(self.plain), decode(self.other)))


@dataclass(frozen=True, slots=True)
class Parity:
    """One comparison of an exact arm with the plain one.

    compared          emitted tokens whose logits row was compared
    first_difference  the first whose row has other bits, None when all are equal
    same_tokens       whether at least the tokens agree
    margin            plain top-1 minus top-2 logit at the first difference
    max_difference    largest difference of a logit there, when both traces kept that row
    prompt            number of the prompt, from 1; 0 when it is not known
    context           tokens around the first difference, None when all are equal
    """

    arm: str
    compared: int
    first_difference: int | None
    same_tokens: bool
    margin: float | None = None
    max_difference: float | None = None
    prompt: int = 0
    context: Context | None = None

    @property
    def equal(self) -> bool:
        return self.first_difference is None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "equal": self.equal}


def compare(plain: Trace, other: Trace, arm: str = "") -> Parity:
    """Compare two traces of one prompt. A missing token is a difference."""
    shared = min(len(plain.digests), len(other.digests))
    pairs = zip(plain.digests, other.digests, strict=False)
    first = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
    if first is None and len(plain.digests) != len(other.digests):
        first = shared
    margin = plain.margins[first] if first is not None and first < len(plain.margins) else None
    gap = None
    if first is not None and first in plain.logits and first in other.logits:
        gap = float(np.abs(plain.logits[first].astype(np.float64) - other.logits[first]).max())
    context = None if first is None else Context.at(plain, other, first)
    return Parity(arm, shared, first, plain.tokens == other.tokens, margin, gap, context=context)
