"""The main model: embeddings, DeltaNet and attention layers, final norm, output matrix.

The residual stream is float32 whatever the weights' dtype; only matrix products round to that dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtptools.decoder.attention import FullAttention
from mtptools.decoder.cache import Cache, KVCache, RecurrentCache
from mtptools.decoder.deltanet import DeltaNet
from mtptools.decoder.moe import Mlp, Moe
from mtptools.decoder.ops import Arithmetic

__all__ = ["Block", "States", "Trunk"]


@dataclass(frozen=True, slots=True)
class States:
    """Trunk states of consecutive positions, float32 [rows, hidden], before and after the final norm."""

    pre: Tensor
    post: Tensor

    def tap(self, which: str) -> Tensor:
        return self.post if which == "post" else self.pre

    def part(self, start: int, stop: int) -> States:
        return States(self.pre[start:stop], self.post[start:stop])

    @staticmethod
    def joined(parts: Sequence[States]) -> States:
        return States(torch.cat([part.pre for part in parts]), torch.cat([part.post for part in parts]))


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer. The norms are float32 [hidden], the factors themselves."""

    mixer: FullAttention | DeltaNet
    mlp: Mlp | Moe
    mixer_norm: Tensor
    mlp_norm: Tensor
    eps: float
    arithmetic: Arithmetic

    def forward(self, x: Tensor, cache: KVCache | RecurrentCache, position: int, recording: bool) -> Tensor:
        """x [rows, hidden] at consecutive positions; same shape back."""
        inner = self.arithmetic.rms_norm(x, self.mixer_norm, self.eps)
        if isinstance(self.mixer, DeltaNet):
            assert isinstance(cache, RecurrentCache)
            x = x + self.mixer.forward(inner, cache, recording)
        else:
            assert isinstance(cache, KVCache)
            x = x + self.mixer.forward(inner, cache, position)
        return x + self.mlp.forward(self.arithmetic.rms_norm(x, self.mlp_norm, self.eps))


@dataclass(frozen=True, slots=True)
class Trunk:
    """embed [vocab, hidden]; output [vocab, hidden] (the same tensor when tied); norm [hidden] float32."""

    embed: Tensor
    blocks: tuple[Block, ...]
    norm: Tensor
    output: Tensor
    eps: float
    arithmetic: Arithmetic

    def new_cache(self) -> Cache:
        return Cache([block.mixer.new_cache() for block in self.blocks])

    def forward(self, ids: Sequence[int], cache: Cache) -> States:
        """Read `ids` after the cache's tokens; the states of their positions."""
        index = torch.tensor(ids, dtype=torch.long, device=self.embed.device)
        x = self.embed.index_select(0, index).float()
        for block, layer in zip(self.blocks, cache.layers, strict=True):
            x = block.forward(x, layer, cache.length, cache.recording)
        cache.length += len(ids)
        return States(x, self.arithmetic.rms_norm(x, self.norm, self.eps))

    def logits(self, states: States) -> Tensor:
        """Float32 [rows, vocab]."""
        return self.arithmetic.logits(states.post, self.output)
