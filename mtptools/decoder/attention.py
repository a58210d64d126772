"""Grouped-query attention, with what families add to it: biases, per-head q/k norm, sigmoid output gate.

Formulas: transformers 5.23, `Qwen3_5Attention` (gate, norm), `Glm4MoeAttention` (biases, norm) and `Qwen2Attention`
(biases). Keys are read in chunks of 64 with an online softmax, so that a query's arithmetic depends on its own
position alone: by one kernel for all chunks where the kernels run, else by torch, a chunk after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor

from mtptools.decoder import kernels
from mtptools.decoder.cache import CHUNK, BranchCache, KVCache
from mtptools.decoder.ops import Arithmetic, aligned
from mtptools.decoder.packed import Weight
from mtptools.decoder.rope import Rope

__all__ = ["Attention", "AttentionWeights", "attend", "by_heads", "fused", "own_keys", "padded"]


def by_heads() -> ModuleType:
    """`kernels.heads`, which imports triton: not before it is run."""
    from mtptools.decoder.kernels import heads

    return heads


def fused(cache: KVCache) -> ModuleType | None:
    """`kernels.attention`, where kernels read a cache by themselves; None where torch does, a chunk at a time.

    Keys that rows have beside the text's are read by torch.
    """
    if isinstance(cache, BranchCache) or not kernels.chosen(cache.device):
        return None
    from mtptools.decoder.kernels import attention  # imports triton: not before it is run

    return attention


def _masks(device: torch.device) -> Tensor:
    """[65, 64]: row j lets the first j keys of a chunk through."""
    keys = torch.arange(CHUNK, device=device)
    seen = torch.arange(CHUNK + 1, device=device)
    return torch.zeros((CHUNK + 1, CHUNK), device=device).masked_fill(keys >= seen[:, None], float("-inf"))


_MASKS: dict[torch.device, Tensor] = {}


def attend(arithmetic: Arithmetic, queries: Tensor, cache: KVCache, last: list[int]) -> Tensor:
    """Softmax attention, float32.

    queries  [rows, n_heads, key_dim], already scaled
    last     per row, the last cache slot it may see; below 0 for none, only of branches, which have keys of their own
    returns  [rows, n_heads, value_dim]
    """
    kernels = fused(cache)
    if kernels is not None:
        found: Tensor = kernels.attend(queries, cache, last)
        return found
    tile = arithmetic.tile
    if len(last) == tile:
        return _attend_tile(queries, cache, last, own_keys(cache, 0, tile, 0))
    parts = []
    for start in range(0, len(last), tile):
        part, ends = queries[start : start + tile], last[start : start + tile]
        pad = tile - len(ends)
        own = own_keys(cache, start, start + len(ends), pad)
        if pad:
            part = padded(part, pad)
            ends = ends + [0] * pad
        parts.append(_attend_tile(part, cache, ends, own))
    return torch.cat(parts)[: len(last)]


def padded(rows: Tensor, n: int) -> Tensor:
    """With n rows of zeros behind."""
    return torch.cat((rows, rows.new_zeros((n, *rows.shape[1:])))) if n else rows


def own_keys(cache: KVCache, start: int, stop: int, pad: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values that rows start … stop - 1 have beside the text's, one of each a row."""
    if not isinstance(cache, BranchCache):
        return []
    return [(padded(keys, pad), padded(values, pad)) for keys, values in cache.branches(start, stop)]


def _attend_tile(queries: Tensor, cache: KVCache, last: list[int], own: list[tuple[Tensor, Tensor]]) -> Tensor:
    rows, heads, dim = queries.shape
    kv_heads = cache.shape[0]
    group = heads // kv_heads
    q = aligned(queries).view(rows, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, rows * group, dim)
    masks = _MASKS.get(cache.device)
    if masks is None:
        masks = _MASKS[cache.device] = _masks(cache.device)
    state = _own_softmax(q, own, group)
    for index in range(max(last) // CHUNK + 1):
        seen = [min(max(end + 1 - index * CHUNK, 0), CHUNK) for end in last]
        keys, values = cache.read(index)
        scores = torch.bmm(q, keys.transpose(1, 2))
        if min(seen) < CHUNK:
            mask = masks[seen[0]] if rows == 1 else masks[seen].repeat_interleave(group, dim=0)
            scores = scores + mask
        top = scores.amax(-1, keepdim=True)
        if state is None:
            weights = (scores - top).exp_()
            state = top, weights.sum(-1, keepdim=True), torch.bmm(weights, values)
            continue
        peak, total, mixed = state
        new_peak = torch.maximum(peak, top)
        weights = (scores - new_peak).exp_()
        decay = (peak - new_peak).exp_()
        new_total = total * decay + weights.sum(-1, keepdim=True)
        new_mixed = mixed * decay + torch.bmm(weights, values)
        if min(seen) == 0:  # a chunk out of a row's sight changes nothing of it, not even the sign of a zero
            sees = torch.tensor(seen, device=q.device).repeat_interleave(group).view(1, -1, 1) > 0
            new_peak = torch.where(sees, new_peak, peak)
            new_total = torch.where(sees, new_total, total)
            new_mixed = torch.where(sees, new_mixed, mixed)
        state = new_peak, new_total, new_mixed
    assert state is not None  # a row sees a slot of the cache, or a key of its own
    out = state[2] / state[1]
    return out.view(kv_heads, rows, group, -1).transpose(0, 1).reshape(rows, heads, -1)


def _own_softmax(q: Tensor, own: list[tuple[Tensor, Tensor]], group: int) -> tuple[Tensor, Tensor, Tensor] | None:
    """The largest score, the sum of weights and the weighted values over keys of rows' own; None without such keys.

    q [kv_heads, rows * group, dim];  own  keys and values [rows, kv_heads, …], one key a row
    """
    state: tuple[Tensor, Tensor, Tensor] | None = None
    for keys, values in own:
        key, value = (x.transpose(0, 1).repeat_interleave(group, dim=1) for x in (keys, values))
        score = (q * key).sum(-1, keepdim=True)
        if state is None:
            state = score, torch.ones_like(score), value
            continue
        peak, total, mixed = state
        new_peak = torch.maximum(peak, score)
        weight, decay = (score - new_peak).exp_(), (peak - new_peak).exp_()
        state = new_peak, total * decay + weight, mixed * decay + weight * value
    return state


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One layer's weights.

    qkvg  [rows, hidden]: queries, keys, output gates (if `gate`), values; heads in order, head_dim rows each
    bias  [rows] float32 of queries, keys, values, or None
    norm  [n_heads + n_kv_heads, head_dim] float32: the factors of the q and k norms, one row per head; or None
    out   [hidden, n_heads * head_dim]
    """

    qkvg: Weight
    out: Weight
    norm: Tensor | None = None
    bias: Tensor | None = None
    gate: bool = False


@dataclass(frozen=True, slots=True)
class Attention:
    weights: AttentionWeights
    n_heads: int
    n_kv_heads: int
    head_dim: int
    rope: Rope
    eps: float
    arithmetic: Arithmetic
    recordable: ClassVar[bool] = True

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "mixer input", self.weights.qkvg
        yield "mixer output", self.weights.out

    def new_cache(self) -> KVCache:
        dtype = self.weights.qkvg.dtype
        return KVCache(self.n_kv_heads, self.head_dim, self.head_dim, dtype, self.arithmetic.device)

    def shifted(self, by: float) -> Attention:
        """With `by` added to the factors of its norms, if it has any."""
        norm = self.weights.norm
        return self if norm is None else replace(self, weights=replace(self.weights, norm=norm + by))

    def forward(self, x: Tensor, cache: KVCache, position: int) -> Tensor:
        """x [rows, hidden], appended to the cache at rotary positions position, position + 1 …; same shape back."""
        rows, heads, dim = x.shape[0], self.n_heads, self.head_dim
        both = heads + self.n_kv_heads
        ops, weights = self.arithmetic, self.weights
        projected = ops.linear(x, weights.qkvg)
        if weights.bias is not None:
            projected = projected + weights.bias
        projected = projected.view(rows, -1, dim)
        if ops.kernels and (found := fused(cache)) is not None:
            return ops.linear(self._by_kernels(found, projected, cache, position), weights.out)
        qk = projected[:, :both]
        if weights.norm is not None:
            qk = ops.rms_norm(qk, weights.norm, self.eps)
        qk = self.rope.rotate(qk, position)
        first = cache.length
        cache.append(torch.cat((qk[:, heads:], projected[:, -self.n_kv_heads :]), dim=-1))
        scale = dim**-0.5 * self.rope.settings.scores
        mixed = attend(ops, qk[:, :heads] * scale, cache, list(range(first, first + rows)))
        if weights.gate:
            mixed = mixed * ops.pointwise(torch.sigmoid, projected[:, both : both + heads])
        return ops.linear(mixed.view(rows, heads * dim), weights.out)

    def _by_kernels(self, attention: ModuleType, projected: Tensor, cache: KVCache, position: int) -> Tensor:
        """The same from `projected` [rows, heads, head_dim] on, of the host's numbers only how many rows there are."""
        rows, heads, both = projected.shape[0], self.n_heads, self.n_heads + self.n_kv_heads
        offset, until, slots = position - cache.length, cache.until(rows), cache.positions(rows)
        cache.make_room(rows)
        queries = by_heads().place(
            projected,
            self.weights.norm,
            self.rope.until(until + offset),
            cache.pages,
            slots,
            offset=offset,
            eps=self.eps,
            scale=self.head_dim**-0.5 * self.rope.settings.scores,
            n_heads=heads,
            n_kv_heads=self.n_kv_heads,
            dim=self.rope.dim,
            pairs=self.rope.settings.pairs,
            dtype=cache.dtype,
        )
        cache.advance(rows)
        gate = projected[:, both : both + heads] if self.weights.gate else None
        found: Tensor = attention.attend(queries, cache, slots, until, gate)
        return found.view(rows, -1)
