"""Multi-head latent attention: keys and values of all heads are made from one small latent per token.

Formulas: transformers 5.23, `DeepseekV2Attention` and `DeepseekV3Attention`, in their absorbed form: a query is taken
into the latent space (`key_up`), looks at latents as one shared head, and what it finds is taken out (`value_up`).
The cache holds latents alone. Norms of latents use the model's epsilon, as vLLM, SGLang and llama.cpp do;
transformers and DeepSeek's own code always use 1e-6, which is a difference for GLM-4.7-Flash (1e-5) only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from mtptools.decoder.attention import attend, by_heads, fused
from mtptools.decoder.cache import KVCache
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight
from mtptools.decoder.rope import Rope

__all__ = ["LatentAttention", "LatentWeights"]


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """One layer's weights.

    down      [q_rank + rank + rope, hidden]: query latent (all queries when there is none), latent, rotary key
    query_up  [n_heads * (nope + rope), q_rank], None without a query latent; query_norm  [q_rank] float32 or None
    norm      [rank] float32
    key_up    [n_heads, rank, nope];   value_up  [n_heads, v_dim, rank]
    out       [hidden, n_heads * v_dim]
    """

    down: Weight
    query_up: Weight | None
    query_norm: Tensor | None
    norm: Tensor
    key_up: Tensor
    value_up: Tensor
    out: Weight


@dataclass(frozen=True, slots=True)
class LatentAttention:
    weights: LatentWeights
    rope: Rope
    eps: float
    arithmetic: Arithmetic
    recordable: ClassVar[bool] = True

    @property
    def n_heads(self) -> int:
        return self.weights.key_up.shape[0]

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "mixer input", self.weights.down
        if self.weights.query_up is not None:
            yield "query up", self.weights.query_up
        yield "mixer output", self.weights.out

    def products(self) -> Iterator[tuple[str, Tensor]]:
        """(what, weight [heads, N, K]) of every product by head."""
        yield "key up", self.weights.key_up
        yield "value up", self.weights.value_up

    def new_cache(self) -> KVCache:
        rank = self.weights.norm.shape[0]
        return KVCache(1, rank + self.rope.dim, 0, self.weights.down.dtype, self.arithmetic.device, shared=rank)

    def shifted(self, by: float) -> LatentAttention:
        """With `by` added to the factors of its norms."""
        query, norm = self.weights.query_norm, self.weights.norm + by
        shifted = replace(self.weights, norm=norm, query_norm=None if query is None else query + by)
        return replace(self, weights=shifted)

    def forward(self, x: Tensor, cache: KVCache, position: int) -> Tensor:
        """x [rows, hidden], appended to the cache at rotary positions position, position + 1 …; same shape back."""
        ops, weights, rope = self.arithmetic, self.weights, self.rope.dim
        rows, rank = x.shape[0], weights.norm.shape[0]
        heads, _, nope = weights.key_up.shape
        down = ops.linear(x, weights.down)
        queries, latent, key = torch.split(down, [down.shape[1] - rank - rope, rank, rope], dim=1)
        if weights.query_up is not None and weights.query_norm is not None:
            queries = ops.linear(ops.rms_norm(queries, weights.query_norm, self.eps), weights.query_up)
        queries = queries.reshape(rows, heads, nope + rope)
        latent = ops.rms_norm(latent, weights.norm, self.eps).unsqueeze(1)
        within = ops.per_head(queries[..., :nope], weights.key_up)
        scale = (nope + rope) ** -0.5 * self.rope.settings.scores
        if ops.kernels and (attention := fused(cache)) is not None:
            offset, until, slots = position - cache.length, cache.until(rows), cache.positions(rows)
            cache.make_room(rows)
            turn = partial(self.rope.rotate, start=offset, slots=slots, until=until)
            both = torch.cat((latent, turn(key.unsqueeze(1))), dim=-1)
            by_heads().write(both, cache.pages, slots, cache.dtype)
            cache.advance(rows)
            sought = torch.cat((within, turn(queries[..., nope:])), dim=-1) * scale
            mixed = attention.attend(sought, cache, slots, until)
        else:
            first = cache.length
            cache.append(torch.cat((latent, self.rope.rotate(key.unsqueeze(1), position)), dim=-1))
            sought = torch.cat((within, self.rope.rotate(queries[..., nope:], position)), dim=-1) * scale
            mixed = attend(ops, sought, cache, list(range(first, first + rows)))
        return ops.linear(ops.per_head(mixed, weights.value_up).reshape(rows, -1), weights.out)
