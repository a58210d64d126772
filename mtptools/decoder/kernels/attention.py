# mypy: disable-error-code="import-untyped"
"""Attention of any number of rows over any number of keys, in two launches: the way from torch into its programs.

The number of rows, and of keys, chooses how many programs run, never which one, nor the order in which one adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.kernels import programs_attention as programs
from mtptools.decoder.kernels.launch import TYPES, current, placed, power
from mtptools.decoder.kernels.table import ATTENTION, SCRATCH

__all__ = ["attend", "attend_sink"]


@dataclass(frozen=True, slots=True)
class _View:
    """Chunks first … stop - 1 of a cache, and which of their slots rows see, told one way or the other.

    last  int64 [rows]: all slots up to this one;  seen  uint8 [rows, slots]
    """

    cache: KVCache
    first: int
    stop: int
    last: Tensor | None = None
    seen: Tensor | None = None

    @property
    def segments(self) -> range:
        return range(self.first * CHUNK // ATTENTION.segment, -(-self.stop * CHUNK // ATTENTION.segment))


def attend(
    queries: Tensor, cache: KVCache, last: Sequence[int] | Tensor, until: int = 0, gate: Tensor | None = None
) -> Tensor:
    """Softmax attention: float32 [rows, n_heads, value_dim].

    queries  float32 [rows, n_heads, key_dim], already scaled
    last     per row, the last slot that it sees, 0 or above; a tensor is int64, on the device, and read there alone
    until    slots that programs are started for: above every `last` of a tensor, which is not checked. More start
             programs that find nothing, and change no bit
    gate     float32 [rows, n_heads, value_dim]: the result is multiplied by its sigmoid
    """
    if not isinstance(last, Tensor):
        until = max(until, max(last) + 1)
        last = _ends(tuple(last), queries.device)
    return _attended(queries, [_View(cache, 0, -(-until // CHUNK), last=last.contiguous())], None, gate)


def attend_sink(queries: Tensor, sinks: Tensor, sights: Sequence[tuple[KVCache, int, Tensor]]) -> Tensor:
    """The same over several caches of one shape, with a sink that takes its share and gives nothing.

    sinks   float32 [n_heads], the sinks' scores
    sights  of each cache the first chunk, and which slots from there on a row sees: bool [rows, 64 * chunks]
    """
    views = [
        _View(cache, first, first + seen.shape[1] // CHUNK, seen=placed(seen.view(torch.uint8)))
        for cache, first, seen in sights
    ]
    return _attended(queries, views, placed(sinks), None)


def _attended(queries: Tensor, views: Sequence[_View], sinks: Tensor | None, gate: Tensor | None) -> Tensor:
    queries = placed(queries)
    if gate is not None and gate.stride(2) != 1:
        gate = placed(gate)
    strides = (0, 0) if gate is None else gate.stride()[:2]
    (rows, heads, _), cache = queries.shape, views[0].cache
    value_dim = cache.shared or cache.value_dim
    segments = sum(len(view.segments) for view in views)
    out = queries.new_empty((rows, heads, value_dim))
    step = min(rows, max(1, SCRATCH // (segments * heads * value_dim * 4)))
    peaks, totals = (queries.new_empty((step, segments, heads)) for _ in range(2))
    mixed = queries.new_empty((step, segments, heads, value_dim))
    with current(queries.device):
        for row in range(0, rows, step):
            count, place = min(step, rows - row), 0
            for view in views:
                n, constants = len(view.segments), _constants(view.cache, heads)
                grid = (count, n, constants.pop("programs"))
                programs.look[grid](
                    *(queries, view.cache.pages, view.last, view.seen, peaks, totals, mixed, row),
                    *(view.segments.start, place, view.first, view.stop, segments),
                    **constants,
                )
                place += n
            programs.join[(count, heads)](
                *(peaks, totals, mixed, sinks, views[0].last, gate, out, row, segments, *strides),
                **_joining(heads, value_dim),
            )
    return out


def _constants(cache: KVCache, heads: int) -> dict[str, Any]:
    """What chooses the program, all of it the model's; and how many programs a row's segment takes."""
    kv_heads, _, width = cache.shape
    group, value_dim = heads // kv_heads, cache.shared or cache.value_dim
    values = min(ATTENTION.values, power(value_dim))
    return {
        "programs": kv_heads * -(-group // programs.HEADS.value) * -(-value_dim // values),
        "cached": TYPES[cache.dtype],
        "group": group,
        "kv_heads": kv_heads,
        "key_dim": cache.key_dim,
        "width": width,
        "value_at": 0 if cache.shared else cache.key_dim,
        "value_dim": value_dim,
        "keys": ATTENTION.keys,
        "columns": min(ATTENTION.columns, power(cache.key_dim)),
        "values": values,
        "segment": ATTENTION.segment,
        "num_warps": ATTENTION.warps,
        "num_stages": 1,
        "enable_fp_fusion": False,
    }


def _joining(heads: int, value_dim: int) -> dict[str, Any]:
    padded = power(value_dim)
    return {
        "heads": heads,
        "value_dim": value_dim,
        "padded": padded,
        "length": ATTENTION.segment,
        "num_warps": 4,
        "enable_fp_fusion": False,
    }


@lru_cache(maxsize=4)
def _ends(last: tuple[int, ...], device: torch.device) -> Tensor:
    """Made once for all layers of a pass."""
    return torch.tensor(last, dtype=torch.int64, device=device)
