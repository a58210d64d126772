"""What a decoder remembers of the tokens it has seen, and how it forgets rejected ones.

Attention keeps keys and values in chunks of 64 slots: forgetting is a smaller length. A recurrent layer keeps
its state after each token of the current pass (tensors are never written in place, so this copies nothing):
forgetting is taking an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

__all__ = ["CHUNK", "Cache", "KVCache", "RecurrentCache", "RecurrentState"]

CHUNK: Final = 64
"""Keys per attention chunk. Fixed, so that no decoding mode sees another chunk boundary."""


class KVCache:
    """Keys and values of one attention layer: chunks [2, n_kv_heads, 64, head_dim], unwritten slots zero.

    A slot beyond `length` may hold a forgotten value; it is finite and masked.
    """

    def __init__(self, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self.shape = (2, n_kv_heads, CHUNK, head_dim)
        self.dtype = dtype
        self.device = device
        self.chunks: list[Tensor] = []
        self.length = 0

    def append(self, keys_values: Tensor) -> None:
        """Write rows [rows, 2, n_kv_heads, head_dim] after the last one."""
        for row in keys_values.to(self.dtype).unbind():
            chunk, slot = divmod(self.length, CHUNK)
            if chunk == len(self.chunks):
                self.chunks.append(torch.zeros(self.shape, dtype=self.dtype, device=self.device))
            self.chunks[chunk][:, :, slot] = row
            self.length += 1

    def rollback(self, length: int) -> None:
        self.length = length


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """conv: the last kernel-1 inputs [kernel - 1, channels]; memory: [n_v_heads, k_dim, v_dim]. Both float32."""

    conv: Tensor
    memory: Tensor


class RecurrentCache:
    """State of one DeltaNet layer, and the states after each token of the pass that is being recorded."""

    def __init__(self, initial: RecurrentState) -> None:
        self.state = initial
        self.history: list[RecurrentState] = []
        self.base = 0

    def start(self, length: int) -> None:
        """Begin recording: `length` tokens are behind the current state."""
        self.base = length
        self.history = [self.state]

    def rollback(self, length: int) -> None:
        self.state = self.history[length - self.base]
        self.history = []


@dataclass
class Cache:
    """One state per trunk layer; `length` tokens are behind it."""

    layers: list[KVCache | RecurrentCache]
    length: int = 0
    recording: bool = field(default=False)

    def start(self) -> None:
        """Remember enough from here on to forget any suffix of what follows."""
        self.recording = True
        for layer in self.layers:
            if isinstance(layer, RecurrentCache):
                layer.start(self.length)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens, and stop recording. `length` is at or after the last `start`."""
        self.recording = False
        self.length = length
        for layer in self.layers:
            layer.rollback(length)
