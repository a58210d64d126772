"""What holds of attention by kernels; the faults that are put in on purpose must break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder import attention as decoder
from mtptools.decoder import compressed
from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.kernels import attention

CPU: Final = torch.device("cpu")
EPS: Final = 2.0**-24

Sights = tuple[Tensor, Tensor, list[tuple[KVCache, int, Tensor]]]


@dataclass(frozen=True, slots=True)
class Shape:
    """value_dim columns of values behind the keys, or `shared` with them."""

    kv_heads: int
    heads: int
    key_dim: int
    value_dim: int
    shared: bool = False

    def cache(self, dtype: torch.dtype, device: torch.device = CPU) -> KVCache:
        own, shared = (0, self.value_dim) if self.shared else (self.value_dim, 0)
        return KVCache(self.kv_heads, self.key_dim, own, dtype, device, shared)


SHAPES: Final = {
    "one head": Shape(1, 1, 16, 16),
    "grouped": Shape(2, 6, 32, 32),
    "more than one program's heads": Shape(2, 40, 16, 16),
    "latent": Shape(1, 4, 72, 64, shared=True),
    "wide values": Shape(1, 2, 324, 288, shared=True),  # more than one program's columns, and no power of two
}


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def queries_of(shape: Shape, rows: int) -> Tensor:
    """Scaled so that scores are a few units."""
    return 3 * shape.key_dim**-0.5 * noise(rows, shape.heads, shape.key_dim, seed=rows)


def text(shape: Shape, dtype: torch.dtype, n: int, device: torch.device = CPU) -> KVCache:
    """A cache of n tokens. Slots that none was written to are NaN."""
    cache = shape.cache(dtype, device)
    cache.append(noise(n, *cache.shape[::2], seed=n).to(device))
    for chunk, values in enumerate(cache.chunks):
        values[:, max(n - chunk * CHUNK, 0) :] = float("nan")
    return cache


def exact(queries: Tensor, cache: KVCache, last: Sequence[int]) -> tuple[Tensor, Tensor]:
    """In float64: the result, and how far one in float32 may be from it."""
    keys, values = _joined(cache)
    found = []
    for query, end in zip(queries, last, strict=True):
        seen = torch.arange(keys.shape[1], device=keys.device)[None] <= end
        found.append(_softmax(query, keys, values, seen, None))
    return _stacked(found)


def _joined(cache: KVCache) -> tuple[Tensor, Tensor]:
    both = [cache.read(chunk) for chunk in range(len(cache.chunks))]
    return torch.cat([keys for keys, _ in both], 1), torch.cat([values for _, values in both], 1)


def _stacked(found: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([result for result, _ in found]), torch.stack([bound for _, bound in found])


def _softmax(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of one row [heads, dim] over keys [kv_heads, n, dim], of which it sees some [1, n]."""
    heads, _ = query.shape
    keys, values = (x[:, seen[0]].double().repeat_interleave(heads // len(x), 0) for x in (keys, values))
    query = query.double()
    scores = (keys * query[:, None]).sum(-1)
    sizes = (keys * query[:, None]).abs().sum(-1).amax(-1) if scores.shape[1] else query.new_zeros(heads)
    all_scores = scores if sinks is None else torch.cat((scores, sinks.double()[:, None]), 1)
    weights = torch.softmax(all_scores, 1)[:, : scores.shape[1], None]
    # A score has key_dim roundings, and errors of scores are relative ones of weights; so are those of exp, whose
    # argument is rounded again. The sums have a rounding for each key; a sum divides, so all of this counts twice.
    off = 2 * EPS * ((query.shape[1] + 8) * sizes + scores.shape[1] + 16)
    return (weights * values).sum(1), off[:, None] * (weights * values.abs()).sum(1) + 1e-30


def is_near(shape: Shape, dtype: torch.dtype, last: Sequence[int], device: torch.device = CPU) -> None:
    cache = text(shape, dtype, max(last) + 1, device)
    queries = queries_of(shape, len(last)).to(device)
    got = attention.attend(queries, cache, last)
    want, bound = exact(queries, cache, last)
    assert got.shape == (len(last), shape.heads, shape.value_dim)
    assert ((got - want).abs() <= bound).all()
    for chunk in cache.chunks:
        chunk.nan_to_num_()  # torch's own sees forgotten slots, masked
    other = decoder._attend_tile(queries, cache, list(last), [])
    assert ((got - other).abs() <= 2 * bound).all()


def at_every_place(cache: KVCache, shape: Shape, counts: Sequence[int], last: Sequence[int]) -> int:
    """Rows alone have the bits that they have among others, first, last and between; number of comparisons."""
    queries, tried = queries_of(shape, len(last)).to(cache.device), 0
    alone = [attention.attend(query[None], cache, [end])[0] for query, end in zip(queries, last, strict=True)]
    for count in counts:
        order = [row % len(last) for row in range(count)]
        for turn in {0, min(1, count - 1)}:
            places = order[turn:] + order[:turn]
            together = attention.attend(queries[places], cache, [last[row] for row in places])
            for place, row in enumerate(places):
                assert torch.equal(together[place], alone[row]), f"row {place} of {count}"
                tried += 1
    return tried


def nothing_beyond_sight(shape: Shape, n: int, device: torch.device = CPU) -> None:
    """Two rows of n and n - 9 slots: what stands behind them, NaN too, changes no bit; nor do more chunks."""
    cache = text(shape, torch.float32, n, device)
    queries, last = queries_of(shape, 2).to(device), [n - 1, n - 10]
    before = attention.attend(queries, cache, last)
    assert before.isfinite().all()
    cache.append(noise(3 * CHUNK, *cache.shape[::2], seed=0).to(device) * 100)
    assert torch.equal(attention.attend(queries, cache, last), before)
    longer = torch.cat((queries, queries[:1]))
    assert torch.equal(attention.attend(longer, cache, [*last, n + 2 * CHUNK])[:2], before)
    for chunk in range(len(cache.chunks)):
        cache.chunks[chunk][:, max(n - 9 - chunk * CHUNK, 0) :] = float("nan")
    assert torch.equal(attention.attend(queries, cache, last)[1], before[1])


SINK_SHAPE: Final = Shape(1, 3, 36, 36, shared=True)


def sights_of(dtype: torch.dtype, rows: int, device: torch.device = CPU) -> Sights:
    """Queries, sinks, and two caches: a window of 40 keys that slides over 700, and every third of 130 others.

    Row 1 sees none of the others; what no row sees is NaN.
    """
    shape = SINK_SHAPE
    recent, others = text(shape, dtype, 700, device), text(shape, dtype, 130, device)
    first = (600 - 40) // CHUNK
    slots = torch.arange(first * CHUNK, 11 * CHUNK)
    last = torch.arange(rows)[:, None] * 23 + 600
    window = ((slots <= last) & (slots > last - 40)).to(device)
    some = (torch.arange(3 * CHUNK) % 3 == 0) & (torch.arange(3 * CHUNK) < 130) & (torch.arange(rows) != 1)[:, None]
    some = some.to(device)
    for cache, start, seen in ((recent, first, window), (others, 0, some)):
        for chunk, values in enumerate(cache.chunks):
            low = (chunk - start) * CHUNK
            visible = seen[:, low : low + CHUNK].any(0) if low >= 0 else torch.zeros(CHUNK, dtype=torch.bool)
            values[:, ~visible.to(device)] = float("nan")
    sinks = torch.tensor([8.0, -2.0, 5.0], device=device)  # most of the weight, none, some
    return queries_of(shape, rows).to(device), sinks, [(recent, first, window), (others, 0, some)]


def sink_is_near(dtype: torch.dtype, device: torch.device = CPU) -> None:
    queries, sinks, sights = sights_of(dtype, 3, device)
    got = attention.attend_sink(queries, sinks, sights)
    keys = torch.cat([_joined(cache)[0][:, first * CHUNK :][:, : seen.shape[1]] for cache, first, seen in sights], 1)
    values = torch.cat([_joined(cache)[1][:, first * CHUNK :][:, : seen.shape[1]] for cache, first, seen in sights], 1)
    seen = torch.cat([seen for _, _, seen in sights], 1)
    rows = [_softmax(query, keys, values, seen[row : row + 1], sinks) for row, query in enumerate(queries)]
    want, bound = _stacked(rows)
    assert ((got - want).abs() <= bound).all()
    for cache, _, _ in sights:
        for chunk in cache.chunks:
            chunk.nan_to_num_()
    views = [compressed.Sight(*sight) for sight in sights]
    other = compressed._attend_tile(queries, sinks, views, [])
    assert ((got - other).abs() <= 2 * bound).all()
