"""Gated DeltaNet: a causal convolution, then a matrix memory that is decayed, corrected and read per token.

Formulas: transformers 5.23, `Qwen3_5GatedDeltaNet` and `torch_recurrent_gated_delta_rule`. The rule runs token
by token in float32 in every mode; a chunked form would round differently from the one-token form. Only arithmetic that
is free to (`free.py`) takes that form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder.cache import RecurrentCache, RecurrentState, RingCache
from mtptools.decoder.delta_chunks import delta_chunks
from mtptools.decoder.free import Free
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight

__all__ = ["DeltaNet", "DeltaNetWeights"]

L2_EPS: Final = 1e-6
"""Added to the squared length of queries and keys (`l2norm` of the source), whatever the model's norm epsilon."""


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """One layer's weights; value heads grouped by their key head, as the original release stores them.

    fused  [2 * k_dim + 2 * v_dim + 2 * n_v_heads, hidden]: q, k, v, z (output gate), b (beta), a (decay)
    conv   [kernel, 2 * k_dim + v_dim] float32, oldest input first
    decay  [n_v_heads] float32, -exp(A_log);   dt  [n_v_heads] float32
    norm   [v_head_dim] float32, the factor itself;   out  [hidden, v_dim]
    """

    fused: Weight
    conv: Tensor
    decay: Tensor
    dt: Tensor
    norm: Tensor
    out: Weight


class DeltaNet:
    def __init__(
        self,
        weights: DeltaNetWeights,
        n_k_heads: int,
        n_v_heads: int,
        k_dim: int,
        v_dim: int,
        eps: float,
        arithmetic: Arithmetic,
    ) -> None:
        self.weights = weights
        self.n_k_heads, self.n_v_heads, self.k_dim, self.v_dim = n_k_heads, n_v_heads, k_dim, v_dim
        self.eps = eps
        self.arithmetic = arithmetic
        heads = [head // (n_v_heads // n_k_heads) for head in range(n_v_heads)]
        # Row of each value head's query, then of its key, among the stacked query and key heads.
        rows = heads + [head + n_k_heads for head in heads]
        self.spread = None if n_k_heads == n_v_heads else torch.tensor(rows, device=arithmetic.device)

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "mixer input", self.weights.fused
        yield "mixer output", self.weights.out

    def new_cache(self) -> RecurrentCache | RingCache:
        kernel, channels = self.weights.conv.shape
        device = self.arithmetic.device
        memory = torch.zeros((self.n_v_heads, self.k_dim, self.v_dim), device=device)
        state = RecurrentState(torch.zeros((kernel - 1, channels), device=device), memory)
        return RingCache(state) if self.arithmetic.kernels and not self._free else RecurrentCache(state)

    @property
    def recordable(self) -> bool:
        return not self._free

    @property
    def _free(self) -> bool:
        return isinstance(self.arithmetic, Free)

    def step(self, state: RecurrentState, fused: Tensor) -> tuple[RecurrentState, Tensor]:
        """One token. fused [1, …] as `DeltaNetWeights.fused` orders it; returns the new state and [1, v_dim]."""
        weights, n_v = self.weights, self.n_v_heads
        channels = weights.conv.shape[1]
        z_end = channels + n_v * self.v_dim
        window = torch.cat((state.conv, fused[:, :channels]))
        qkv = functional.silu((window * weights.conv).sum(0))
        keys_end = 2 * self.n_k_heads * self.k_dim
        qk = qkv[:keys_end].view(2 * self.n_k_heads, self.k_dim)
        qk = qk * qk.square().sum(-1, keepdim=True).add_(L2_EPS).rsqrt_()
        if self.spread is not None:
            qk = qk.index_select(0, self.spread)
        query = qk[:n_v].mul(self.k_dim**-0.5).unsqueeze(1)
        key = qk[n_v:].unsqueeze(1)
        value = qkv[keys_end:].view(n_v, 1, self.v_dim)
        beta_a = fused[0, z_end:]
        beta = torch.sigmoid(beta_a[:n_v]).view(n_v, 1, 1)
        decay = (functional.softplus(beta_a[n_v:] + weights.dt) * weights.decay).exp_().view(n_v, 1, 1)
        memory = state.memory * decay
        delta = (value - torch.bmm(key, memory)) * beta
        memory = memory + key.transpose(1, 2) * delta
        read = torch.bmm(query, memory).view(n_v, self.v_dim)
        gate = functional.silu(fused[:, channels:z_end]).view(n_v, self.v_dim)
        read = read * read.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return RecurrentState(window[1:], memory), (read.mul_(weights.norm).mul_(gate)).view(1, -1)

    def _together(self, fused: Tensor, cache: RecurrentCache) -> Tensor:
        """All tokens [rows, …] in chunks; [rows, v_dim]. Of the states only the last is kept."""
        weights, n_v, rows, state = self.weights, self.n_v_heads, fused.shape[0], cache.state
        kernel, channels = weights.conv.shape
        z_end = channels + n_v * self.v_dim
        window = torch.cat((state.conv, fused[:, :channels]))
        mixed = window[:rows] * weights.conv[0]
        for tap in range(1, kernel):
            mixed += window[tap : tap + rows] * weights.conv[tap]
        qkv = functional.silu(mixed)
        keys_end = 2 * self.n_k_heads * self.k_dim
        qk = qkv[:, :keys_end].view(rows, 2 * self.n_k_heads, self.k_dim)
        qk = (qk * qk.square().sum(-1, keepdim=True).add_(L2_EPS).rsqrt_()).transpose(0, 1)
        if self.spread is not None:
            qk = qk.index_select(0, self.spread)
        value = qkv[:, keys_end:].view(rows, n_v, self.v_dim).transpose(0, 1)
        beta = torch.sigmoid(fused[:, z_end : z_end + n_v]).T
        decay = (functional.softplus(fused[:, z_end + n_v :] + weights.dt) * weights.decay).T
        read, memory = delta_chunks(qk[:n_v] * self.k_dim**-0.5, qk[n_v:], value, beta, decay, state.memory)
        cache.push(RecurrentState(window[rows:], memory))
        read = read * read.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_() * weights.norm
        return read.transpose(0, 1).reshape(rows, -1) * functional.silu(fused[:, channels:z_end])

    def forward(self, x: Tensor, cache: RecurrentCache | RingCache, position: int) -> Tensor:
        """x [rows, hidden] in order; same shape back. The rule knows no positions."""
        fused = self.arithmetic.linear(x, self.weights.fused)
        if isinstance(cache, RingCache):
            return self.arithmetic.linear(self._by_kernels(fused, cache), self.weights.out)
        if self._free:
            return self.arithmetic.linear(self._together(fused, cache), self.weights.out)
        outs = []
        for row in range(x.shape[0]):
            state, out = self.step(cache.state, fused[row : row + 1])
            outs.append(out)
            cache.push(state)
        return self.arithmetic.linear(outs[0] if len(outs) == 1 else torch.cat(outs), self.weights.out)

    def _by_kernels(self, fused: Tensor, cache: RingCache) -> Tensor:
        """The reads [rows, v_dim] of all rows; nothing on the host has to know what was before them."""
        from mtptools.decoder.kernels.delta import delta  # imports triton: not before it is run

        rows = len(fused)
        cache.make_room(rows)
        sizes = (self.n_k_heads, self.n_v_heads, self.k_dim, self.v_dim)
        found: Tensor = delta(fused, self.weights, *sizes, self.eps, cache.ring(), cache.kept(rows))
        cache.advance(rows)
        return found
