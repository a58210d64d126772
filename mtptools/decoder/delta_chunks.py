"""The gated delta rule for many tokens at a time: what `DeltaNet.step` does one by one, with other rounding.

With S the memory, a token does S <- a S, u = b (v - S^T k), S <- S + k u^T. Over a chunk the u depend on each other
through k alone: (I + L) U = b (V - G K S0), where G_t is the product of a up to t and L_ti = b_t G_t / G_i (k_t . k_i)
for i < t. One triangular system a chunk replaces its tokens (Yang et al., "Gated Delta Networks", 2024).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

__all__ = ["CHUNK", "delta_chunks"]

CHUNK: Final = 64


def delta_chunks(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """Reads [heads, rows, v_dim] of all tokens, and the memory after the last; all float32.

    query, key [heads, rows, k_dim];  value [heads, rows, v_dim];  beta, log_decay [heads, rows]
    memory     [heads, k_dim, v_dim], before the first token
    """
    reads = []
    for at in range(0, key.shape[1], CHUNK):
        part = slice(at, at + CHUNK)
        q, k, v, b = query[:, part], key[:, part], value[:, part], beta[:, part, None]
        total = log_decay[:, part].cumsum(1)
        since = (total[:, :, None] - total[:, None, :]).tril().exp().tril()  # G_t / G_i, nothing of later tokens
        grown = total.exp()[:, :, None]
        tied = (b * since * (k @ k.transpose(1, 2))).tril(-1)
        wanted = b * (v - grown * (k @ memory))
        new = torch.linalg.solve_triangular(tied, wanted, upper=False, unitriangular=True)
        reads.append(grown * (q @ memory) + (since * (q @ k.transpose(1, 2))) @ new)
        left = (total[:, -1:] - total).exp()[:, :, None]
        memory = grown[:, -1:] * memory + (left * k).transpose(1, 2) @ new
    return torch.cat(reads, dim=1), memory
