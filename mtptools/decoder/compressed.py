"""Attention of DeepSeek-V4: a window of recent keys, a sink, and compressed keys of all that came before.

Keys are their own values, one head of them for all query heads. Positions turn the last values of a head; since the
values were turned too, the result is turned back. The output is projected per group of heads, then together.
Formulas: transformers 5.23, `DeepseekV4Attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtptools.decoder.attention import fused, own_keys, padded
from mtptools.decoder.cache import CHUNK, BranchCache, KVCache
from mtptools.decoder.compressor import Compressor, WindowCache, turn
from mtptools.decoder.indexer import Indexer
from mtptools.decoder.ops import Arithmetic, aligned
from mtptools.decoder.packed import Weight
from mtptools.decoder.rope import Rope

__all__ = ["CompressedAttention", "CompressedWeights", "Sight", "SparseCache", "attend_sink"]


@dataclass(frozen=True, slots=True)
class Sight:
    """Keys that rows of a pass may look at: seen [rows, 64 * chunks] bool, over the slots from chunk `first` on."""

    keys: KVCache
    first: int
    seen: Tensor

    def rows(self, start: int, stop: int, pad: int) -> Sight:
        """Some rows, and `pad` more that see nothing."""
        seen = self.seen[start:stop]
        return replace(self, seen=torch.cat((seen, seen.new_zeros((pad, seen.shape[1])))) if pad else seen)


def attend_sink(ops: Arithmetic, queries: Tensor, sinks: Tensor, sights: Sequence[Sight]) -> Tensor:
    """Softmax attention over all sights, and a sink that takes its share and gives nothing. Float32.

    queries  [rows, n_heads, dim], already scaled;  sinks  [n_heads], the sinks' scores
    returns  [rows, n_heads, dim]
    """
    kernels = fused(sights[0].keys)
    if kernels is not None:
        views = [(sight.keys, sight.first, sight.seen) for sight in sights]
        found: Tensor = kernels.attend_sink(queries, sinks, views)
        return found
    rows, tile = queries.shape[0], ops.tile
    parts = []
    for start in range(0, rows, tile):
        stop = min(start + tile, rows)
        pad = tile - (stop - start)
        seen = [sight.rows(start, stop, pad) for sight in sights]
        own = own_keys(sights[0].keys, start, stop, pad)
        parts.append(_attend_tile(padded(queries[start:stop], pad), sinks, seen, own))
    return parts[0][:rows] if len(parts) == 1 else torch.cat(parts)[:rows]


def _attend_tile(
    queries: Tensor, sinks: Tensor, sights: Sequence[Sight], own: Sequence[tuple[Tensor, Tensor]]
) -> Tensor:
    rows, heads, dim = queries.shape
    q = aligned(queries).reshape(1, rows * heads, dim)
    peak = sinks.repeat(rows).view(1, -1, 1)
    total, mixed = torch.ones_like(peak), torch.zeros_like(q)
    for sight in sights:
        chunks = sight.seen.view(rows, -1, CHUNK)
        sees = chunks.any(-1)
        for index, seeing in enumerate(sees.T.tolist()):
            if not any(seeing):
                continue
            keys, values = sight.keys.read(sight.first + index)
            mask = chunks[:, index].repeat_interleave(heads, dim=0)
            scores = torch.bmm(q, keys.transpose(1, 2)).masked_fill_(~mask, float("-inf"))
            new_peak = torch.maximum(peak, scores.amax(-1, keepdim=True))
            weights = (scores - new_peak).exp_()
            decay = (peak - new_peak).exp_()
            new_total = total * decay + weights.sum(-1, keepdim=True)
            new_mixed = mixed * decay + torch.bmm(weights, values)
            if not all(seeing):  # a chunk out of a row's sight changes nothing of it, not even the sign of a zero
                looks = sees[:, index].repeat_interleave(heads).view(1, -1, 1)
                new_peak = torch.where(looks, new_peak, peak)
                new_total = torch.where(looks, new_total, total)
                new_mixed = torch.where(looks, new_mixed, mixed)
            peak, total, mixed = new_peak, new_total, new_mixed
    for keys, values in own:  # [rows, 1, dim], one key a row
        key, value = (x.repeat_interleave(heads, dim=0).transpose(0, 1) for x in (keys, values))
        score = (q * key).sum(-1, keepdim=True)
        new_peak = torch.maximum(peak, score)
        weight, decay = (score - new_peak).exp_(), (peak - new_peak).exp_()
        peak, total, mixed = new_peak, total * decay + weight, mixed * decay + weight * value
    return (mixed / total).view(rows, heads, dim)


class SparseCache:
    """One layer's memory: keys of all tokens, and of its closed windows for attention and for the indexer."""

    def __init__(self, recent: KVCache, windows: WindowCache | None, index: WindowCache | None) -> None:
        self.recent, self.windows, self.index = recent, windows, index
        self.parts = [part for part in (recent, windows, index) if part is not None]

    @property
    def length(self) -> int:
        return self.recent.length

    def branch(self, lag: int = 0) -> SparseCache:
        """Texts that leave this one at every slot; of a layer without compressed keys."""
        assert self.windows is None
        return SparseCache(self.recent.branch(lag), None, None)

    def start(self, length: int) -> None:
        for part in self.parts:
            part.start(length)

    def rollback(self, length: int) -> None:
        for part in self.parts:
            part.rollback(length)


@dataclass(frozen=True, slots=True)
class CompressedWeights:
    """One layer's weights.

    down   [q_rank + dim (+ 2 * width) (+ 2 * index width + index heads), hidden]: query latent, key; what the
           compressor reads (values, gates); what the indexer's reads, and the shares of its heads
    query  [n_heads * dim, q_rank];   query_norm [q_rank] float32;   key_norm [dim] float32
    sinks  [n_heads] float32
    group_out  [groups, o_rank, n_heads * dim / groups];   out  [hidden, groups * o_rank]
    """

    down: Weight
    query: Weight
    query_norm: Tensor
    key_norm: Tensor
    sinks: Tensor
    group_out: Tensor
    out: Weight


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """window: recent keys a query sees, its own among them. Without a compressor it sees nothing else."""

    weights: CompressedWeights
    window: int
    rope: Rope
    eps: float
    arithmetic: Arithmetic
    compressor: Compressor | None = None
    indexer: Indexer | None = None

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "mixer input", self.weights.down
        yield "query up", self.weights.query
        if self.indexer is not None:
            yield "index query", self.indexer.query
        yield "mixer output by group", self.weights.group_out[0]
        yield "mixer output", self.weights.out

    def shifted(self, by: float) -> CompressedAttention:
        """With `by` added to the factors of its norms."""
        weights = self.weights
        return replace(
            self, weights=replace(weights, query_norm=weights.query_norm + by, key_norm=weights.key_norm + by)
        )

    def new_cache(self) -> SparseCache:
        dtype, dim = self.weights.down.dtype, self.weights.key_norm.shape[0]
        return SparseCache(
            KVCache(1, dim, 0, dtype, self.arithmetic.device, shared=dim),
            self.compressor.new_cache(dtype) if self.compressor else None,
            self.indexer.compressor.new_cache(dtype) if self.indexer else None,
        )

    def forward(self, x: Tensor, cache: SparseCache, position: int) -> Tensor:
        """x [rows, hidden], appended to the cache at rotary positions position, position + 1 …; same shape back."""
        ops, weights = self.arithmetic, self.weights
        rows, dim, rank = x.shape[0], weights.key_norm.shape[0], weights.query_norm.shape[0]
        fused = ops.linear(x, weights.down)
        latent = ops.rms_norm(fused[:, :rank], weights.query_norm, self.eps)
        queries = ops.linear(latent, weights.query).view(rows, -1, dim)
        queries = turn(self.rope, ops.rms_norm(queries, torch.ones_like(weights.key_norm), self.eps), position)
        keys = ops.rms_norm(fused[:, rank : rank + dim], weights.key_norm, self.eps)
        first = cache.length
        cache.recent.append(turn(self.rope, keys.unsqueeze(1), position))
        sights = [self._recent(cache.recent, first, rows)]
        sights += self._compressed(fused[:, rank + dim :], latent, cache, first)
        mixed = attend_sink(ops, queries * dim**-0.5, weights.sinks, sights)
        groups = turn(self.rope, mixed, position, back=True).view(rows, weights.group_out.shape[0], -1)
        return ops.linear(ops.per_head(groups, weights.group_out).flatten(1), weights.out)

    def _recent(self, keys: KVCache, first: int, rows: int) -> Sight:
        """Row r, in slot first + r, sees the `window` slots that end there."""
        chunk = max(0, first + 1 - self.window) // CHUNK
        stop = -(-(first + rows) // CHUNK) * CHUNK
        slots = torch.arange(chunk * CHUNK, stop, device=self.arithmetic.device)
        last = torch.arange(first, first + rows, device=self.arithmetic.device)[:, None]
        window = self.window - (keys.ahead if isinstance(keys, BranchCache) else 0)
        return Sight(keys, chunk, (slots <= last) & (slots > last - window))

    def _compressed(self, given: Tensor, latent: Tensor, cache: SparseCache, first: int) -> list[Sight]:
        """Read what the rows give, [rows, …] as in `CompressedWeights.down`; what they see of compressed keys."""
        if self.compressor is None or cache.windows is None:
            return []
        width = 2 * self.compressor.width
        self.compressor.read(given[:, :width], cache.windows)
        seen = [self.compressor.visible(first + row) for row in range(given.shape[0])]
        if self.indexer is not None and cache.index is not None:
            shares = given.shape[1] - self.indexer.n_heads
            self.indexer.compressor.read(given[:, width:shares], cache.index)
        if not max(seen):
            return []
        if self.indexer is not None and cache.index is not None:
            chosen = self.indexer.choose(latent, given[:, shares:], cache.index, first, seen)
        else:
            slots = torch.arange(-(-max(seen) // CHUNK) * CHUNK, device=given.device)
            chosen = slots < torch.tensor(seen, device=given.device)[:, None]
        return [Sight(cache.windows.keys, 0, chosen)]
