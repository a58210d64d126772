"""Values of a server's answer, looked at before they are believed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from reprlib import repr as short
from typing import Any

from mtptools.errors import SystemFailure

__all__ = ["count", "dict_of", "entry_logprobs", "ids", "logprobs", "strange"]


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
            f"token id {outside}: the checkpoint has 0 to {vocabulary - 1}",
            where=where,
            hint="does it serve this model? its tokenizer must be the checkpoint's",
        )
    return tuple(value)


def dict_of(value: Any) -> Mapping[str, Any]:
    """The object, or an empty one for whatever else stands there."""
    return value if isinstance(value, dict) else {}


def entry_logprobs(entry: Any) -> dict[int, float]:
    """Of llama.cpp's {"id": …, "top_logprobs": [{"id": …, "logprob": …}, …]}."""
    rows = dict_of(entry).get("top_logprobs")
    told = [dict_of(row) for row in rows] if isinstance(rows, list) else []
    return logprobs((row.get("id"), row.get("logprob")) for row in told)


def count(value: Any, where: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise strange(where, f"{short(value)} in place of a count ({what})")
    return value


def logprobs(rows: Iterable[tuple[Any, Any]]) -> dict[int, float]:
    """The rows that hold an id and a finite number; a server that has none to give sends zeros or nothing."""
    return {
        token: float(value)
        for token, value in rows
        if isinstance(token, int) and isinstance(value, int | float) and isfinite(value)
    }
