"""What PyTorch users write, in the place of the exact operations: the other side of `benchmarks/decoder.py`.

Rows are multiplied all at once, whatever their number does to their bits, and attention is torch's own over one buffer.
Only patched methods differ: weights, layers and the recurrent rule stay the decoder's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder import attention
from mtptools.decoder.cache import KVCache
from mtptools.decoder.ops import Arithmetic

CAPACITY = 4096


def linear(self: Arithmetic, x: Tensor, weight: Tensor, index: int | None = None) -> Tensor:
    weight = weight if index is None else weight[index]
    return functional.linear(x.to(weight.dtype), weight).float()


def rows(self: Arithmetic, fn: Callable[[Tensor], Tensor], x: Tensor, tile: int | None = None) -> Tensor:
    return fn(x)


def append(self: KVCache, rows: Tensor) -> None:
    """Rows [rows, n_kv_heads, width] after the last one, in one piece instead of chunks."""
    if not self.chunks:
        heads, _, width = self.shape
        self.chunks.append(torch.zeros((heads, CAPACITY, width), dtype=self.dtype, device=self.device))
    self.chunks[0][:, self.length : self.length + rows.shape[0]] = rows.transpose(0, 1)
    self.length += rows.shape[0]


def attend(arithmetic: Arithmetic, queries: Tensor, cache: KVCache, last: list[int]) -> Tensor:
    both = cache.chunks[0][None, :, : cache.length]
    keys, values = both[..., : cache.key_dim], both[..., cache.key_dim :]
    mask = None
    if len(last) > 1:
        mask = torch.arange(cache.length) <= torch.tensor(last)[:, None]
    out = functional.scaled_dot_product_attention(
        queries.to(both.dtype).transpose(0, 1)[None], keys, values, mask, scale=1.0, enable_gqa=True
    )
    return out[0].transpose(0, 1).float()


SWAPS = {
    "linear": ((Arithmetic, "linear", linear),),
    "logits": ((Arithmetic, "logits", linear),),
    "tiles": ((Arithmetic, "rows", rows),),
    "attention": ((attention, "attend", attend), (KVCache, "append", append)),
}
PARTS = tuple(SWAPS)


@contextmanager
def swapped(parts: Sequence[str]) -> Iterator[None]:
    """Inside, the decoder does `parts` in their plain form."""
    with ExitStack() as stack:
        for part in parts:
            for owner, name, plain in SWAPS[part]:
                stack.enter_context(mock.patch.object(owner, name, plain))
        yield
