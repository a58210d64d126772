"""States of one recurrent layer, in slots of two tensors that kernels write in place.

A pass of `rows` rows, of which `kept` leave their state, writes the state after row r, for r >= rows - kept, to slot
(at + 1 + r - (rows - kept)) % slots. It writes no other slot, and not the one it starts from: going back is another
`at`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Ring"]


@dataclass(frozen=True, slots=True)
class Ring:
    """conv    float32 [slots, kernel - 1, channels]: the last inputs of the convolution, oldest first
    memory  float32 [slots, n_v_heads, k_dim, v_dim]
    at      int64 [1], on their device: the slot of the state before the pass. Kernels read it and do not change it
    """

    conv: Tensor
    memory: Tensor
    at: Tensor
