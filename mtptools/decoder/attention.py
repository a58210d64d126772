"""Gated full attention of Qwen3.5: per-head q/k norm, partial rotary positions, sigmoid output gate.

Formulas: transformers 5.23, `Qwen3_5Attention` and `apply_rotary_pos_emb`. Keys are read in chunks of 64 with
an online softmax, so that a query's arithmetic depends on its own position alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.ops import Arithmetic, aligned

__all__ = ["AttentionWeights", "FullAttention", "Rope", "attend"]


class Rope:
    """cos and sin of position * theta^(-2i/dim), float32 [positions, dim/2].

    Made in blocks of 64 positions: the vector library's cosine may differ in the last bit between an array's
    body and its tail, and a table that grows would change.
    """

    def __init__(self, theta: float, dim: int, device: torch.device) -> None:
        self.dim = dim
        self.device = device
        steps = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self.inverse = 1.0 / torch.pow(torch.tensor(theta, dtype=torch.float32), steps)
        self.table = torch.empty((2, 0, dim // 2), dtype=torch.float32, device=device)

    def at(self, start: int, n: int) -> Tensor:
        """[2, n, 1, dim/2] for positions start … start + n - 1: cos, sin."""
        while self.table.shape[1] < start + n:
            first = self.table.shape[1]
            angles = torch.outer(torch.arange(first, first + CHUNK, dtype=torch.float32), self.inverse)
            block = torch.stack((angles.cos(), angles.sin())).to(self.device)
            self.table = torch.cat((self.table, block), dim=1)
        return self.table[:, start : start + n].unsqueeze(2)

    def rotate(self, x: Tensor, start: int) -> Tensor:
        """x [rows, heads, head_dim] at consecutive positions; the first `dim` values turn, halves paired (NEOX)."""
        cos, sin = self.at(start, x.shape[0])
        half = self.dim // 2
        low, high = x[..., :half], x[..., half : self.dim]
        turned = (low * cos - high * sin, high * cos + low * sin)
        return torch.cat((*turned, x[..., self.dim :]) if self.dim < x.shape[-1] else turned, dim=-1)


def _masks(device: torch.device) -> Tensor:
    """[65, 64]: row j lets the first j keys of a chunk through."""
    keys = torch.arange(CHUNK, device=device)
    seen = torch.arange(CHUNK + 1, device=device)
    return torch.zeros((CHUNK + 1, CHUNK), device=device).masked_fill(keys >= seen[:, None], float("-inf"))


_MASKS: dict[torch.device, Tensor] = {}


def attend(arithmetic: Arithmetic, queries: Tensor, cache: KVCache, last: list[int]) -> Tensor:
    """Softmax attention, float32.

    queries  [rows, n_heads, head_dim], already scaled
    last     per row, the last cache slot it may see
    returns  [rows, n_heads, head_dim]
    """
    tile = arithmetic.tile
    if len(last) == tile:
        return _attend_tile(queries, cache, last)
    parts = []
    for start in range(0, len(last), tile):
        part, ends = queries[start : start + tile], last[start : start + tile]
        if len(ends) < tile:
            part = torch.cat((part, part.new_zeros((tile - len(ends), *part.shape[1:]))))
            ends = ends + [0] * (tile - len(ends))
        parts.append(_attend_tile(part, cache, ends))
    return torch.cat(parts)[: len(last)]


def _attend_tile(queries: Tensor, cache: KVCache, last: list[int]) -> Tensor:
    rows, heads, dim = queries.shape
    kv_heads = cache.shape[1]
    group = heads // kv_heads
    q = aligned(queries).view(rows, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, rows * group, dim)
    masks = _MASKS.get(cache.device)
    if masks is None:
        masks = _MASKS[cache.device] = _masks(cache.device)
    peak = total = mixed = q
    for index in range(max(last) // CHUNK + 1):
        seen = [min(max(end + 1 - index * CHUNK, 0), CHUNK) for end in last]
        keys, values = cache.chunks[index].float().unbind()
        scores = torch.bmm(q, keys.transpose(1, 2))
        if min(seen) < CHUNK:
            mask = masks[seen[0]] if rows == 1 else masks[seen].repeat_interleave(group, dim=0)
            scores = scores + mask
        top = scores.amax(-1, keepdim=True)
        if index == 0:
            weights = (scores - top).exp_()
            peak, total, mixed = top, weights.sum(-1, keepdim=True), torch.bmm(weights, values)
            continue
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
        peak, total, mixed = new_peak, new_total, new_mixed
    out = mixed / total
    return out.view(kv_heads, rows, group, dim).transpose(0, 1).reshape(rows, heads, dim)


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One layer's matrices.

    qkvg  [(2 n_heads + 2 n_kv_heads) * head_dim, hidden]: queries, keys, output gates, values; heads in order
    out   [hidden, n_heads * head_dim]
    norm  [n_heads + n_kv_heads, head_dim] float32: the factors of the q and k norms, one row per head
    """

    qkvg: Tensor
    out: Tensor
    norm: Tensor


class FullAttention:
    def __init__(
        self, weights: AttentionWeights, n_heads: int, n_kv_heads: int, rope: Rope, eps: float, arithmetic: Arithmetic
    ) -> None:
        self.weights = weights
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = weights.norm.shape[1]
        self.rope = rope
        self.eps = eps
        self.arithmetic = arithmetic

    def new_cache(self) -> KVCache:
        dtype = self.weights.qkvg.dtype
        return KVCache(self.n_kv_heads, self.head_dim, dtype, self.arithmetic.device)

    def forward(self, x: Tensor, cache: KVCache, position: int) -> Tensor:
        """x [rows, hidden], appended to the cache at rotary positions position, position + 1 …; same shape back."""
        rows, heads, kv_heads, dim = x.shape[0], self.n_heads, self.n_kv_heads, self.head_dim
        ops, weights = self.arithmetic, self.weights
        fused = ops.linear(x, weights.qkvg).view(rows, 2 * (heads + kv_heads), dim)
        qk = ops.rms_norm(fused[:, : heads + kv_heads], weights.norm, self.eps)
        qk = self.rope.rotate(qk, position)
        values = fused[:, 2 * heads + kv_heads :]
        first = cache.length
        cache.append(torch.stack((qk[:, heads:], values), dim=1))
        mixed = attend(ops, qk[:, :heads] * dim**-0.5, cache, list(range(first, first + rows)))
        gate = ops.rows(torch.sigmoid, fused[:, heads + kv_heads : 2 * heads + kv_heads])
        return ops.linear((mixed * gate).view(rows, heads * dim), weights.out)
