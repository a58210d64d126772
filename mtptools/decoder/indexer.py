"""Which compressed keys a query of DeepSeek-V4's sparse attention looks at: the best by a small attention of its own.

Formulas: transformers 5.23, `DeepseekV4Indexer` and `DeepseekV4IndexerScorer`. Of keys with the same score the
earlier is taken; transformers leaves that open.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.compressor import Compressor, WindowCache, turn
from mtptools.decoder.ops import Arithmetic, aligned
from mtptools.decoder.packed import Weight

__all__ = ["Indexer"]


@dataclass(frozen=True, slots=True)
class Indexer:
    """compressor makes the index keys, [dim] each; query [n_heads * dim, q_rank]; of all keys `top` are taken."""

    compressor: Compressor
    query: Weight
    n_heads: int
    top: int
    arithmetic: Arithmetic

    @property
    def dim(self) -> int:
        return self.compressor.norm.shape[0]

    def choose(self, latent: Tensor, shares: Tensor, cache: WindowCache, position: int, seen: list[int]) -> Tensor:
        """Which keys each row looks at: bool [rows, slots], slots a multiple of 64.

        latent  [rows, q_rank], the query latents;  shares  [rows, n_heads], how much each head counts
        seen    per row, the keys it could look at: the first so many
        """
        slots = torch.arange(-(-max(seen) // CHUNK) * CHUNK, device=latent.device)
        chosen = slots < torch.tensor(seen, device=latent.device)[:, None]
        pick = [row for row, count in enumerate(seen) if count > self.top]
        if pick:
            ops = self.arithmetic
            queries = ops.linear(latent, self.query).view(-1, self.n_heads, self.dim)
            queries = turn(self.compressor.rope, queries, position) * self.dim**-0.5
            both = torch.cat((queries, (shares * self.n_heads**-0.5).unsqueeze(-1)), dim=-1)[pick]
            chunks = range(-(-max(seen) // CHUNK))
            scores = ops.rows(lambda part: torch.cat([_scores(part, cache.keys, at) for at in chunks], 1), both)
            for row, found in zip(pick, scores, strict=True):
                best = torch.sort(found[: seen[row]], descending=True, stable=True).indices[: self.top]
                chosen[row] = False
                chosen[row, best] = True
        return chosen


def _scores(part: Tensor, keys: KVCache, chunk: int) -> Tensor:
    """part [rows, n_heads, dim + 1] (queries, then shares) and 64 keys: what the heads find, added: [rows, 64]."""
    rows, heads, width = part.shape
    queries = aligned(part[..., :-1].reshape(1, rows * heads, width - 1))
    found = torch.bmm(queries, keys.read(chunk)[0].transpose(1, 2)).relu_().view(rows, heads, CHUNK)
    return (found * part[..., -1:]).sum(1)
