"""Values of a server's answer, looked at before they are believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite, nan
from reprlib import repr as short
from typing import Any, Final

from mtptools.errors import SystemFailure
from mtptools.runtimes.generation import Drafts

__all__ = ["count", "dict_of", "drafts", "entry_logprobs", "ids", "logprobs", "number", "strange"]

MOST: Final = 1 << 53
"""The largest count that is believed: what a float holds exactly."""
LEAST: Final = -9999.0
"""Log-probabilities from here on stand for minus infinity: vLLM sends this one, llama.cpp the least float."""
ROUNDED: Final = 0.01  # above zero, by a sum that was rounded


def strange(where: object, what: str) -> SystemFailure:
    return SystemFailure(f"the server answers with {what}", where=where, hint="see its version and its log")


def ids(value: Any, vocabulary: int, where: object, what: str) -> tuple[int, ...]:
    """Token ids of a list. Raises SystemFailure: none at all, or not of this vocabulary."""
    if not isinstance(value, list) or not value:
        raise SystemFailure(
            f"the server tells no token ids ({what})",
            where=where,
            hint="a newer server: llama-server of May 2026, vLLM 0.10.2, SGLang 0.5, or later",
        )
    for one in value:
        if not isinstance(one, int) or isinstance(one, bool):
            raise strange(where, f"{short(one)} in place of a token id")
    outside = next((one for one in value if not 0 <= one < vocabulary), None)
    if outside is not None:
        raise SystemFailure(
            f"token id {short(outside)}: the checkpoint has 0 to {vocabulary - 1}",
            where=where,
            hint="does it serve this model? its tokenizer must be the checkpoint's",
        )
    return tuple(value)


def dict_of(value: Any) -> Mapping[str, Any]:
    """The object, or an empty one for whatever else stands there."""
    return value if isinstance(value, dict) else {}


def entry_logprobs(entry: Any, vocabulary: int) -> dict[int, float]:
    """Of llama.cpp's {"id": …, "top_logprobs": [{"id": …, "logprob": …}, …]}."""
    rows = dict_of(entry).get("top_logprobs")
    told = [dict_of(row) for row in rows] if isinstance(rows, list) else []
    return logprobs(((row.get("id"), row.get("logprob")) for row in told), vocabulary)


def number(value: Any) -> float | None:
    """As a float; None for what is no number, is not finite, or is larger than a float."""
    try:
        found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
    except OverflowError:
        return None
    return found if isfinite(found) else None


def count(value: Any, where: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise strange(where, f"{short(value)} in place of a count ({what})")
    return value


def drafts(drafted: int, accepted: int, where: object, steps: int | None = None) -> Drafts:
    """Raises SystemFailure: more were accepted than made."""
    if accepted > drafted:
        raise strange(where, f"{accepted} accepted drafts of {drafted}")
    return Drafts(drafted, accepted, steps)


def logprobs(rows: Iterable[tuple[Any, Any]], vocabulary: int) -> dict[int, float]:
    """The rows with an id of the vocabulary and what can be its log-probability; other rows tell nothing."""
    return {
        token: told
        for token, value in rows
        if isinstance(token, int) and 0 <= token < vocabulary
        if (told := number(value)) is not None and LEAST < told <= ROUNDED
    }
