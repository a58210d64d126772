"""Free arithmetic on the CPU that begins with what is decoded of a matrix, as much at a time as the cache holds."""

from __future__ import annotations

import torch
from torch import Tensor

from mtptools.decoder.free import Free
from mtptools.decoder.ops import BLOCK, TILE
from mtptools.decoder.packed import Weight, dense, matrix
from mtptools.decoder.stream.coming import Awaited

__all__ = ["Blockwise"]


class Blockwise(Free):
    """Free, with wide products in float32 made block by block: the same sums, faster, and begun before all is there."""

    __slots__ = ()

    def linear(self, x: Tensor, weight: Weight, index: int | None = None) -> Tensor:
        weight = weight if index is None else matrix(weight, index)
        if weight.dtype != torch.float32:
            return super().linear(x, weight)
        if not isinstance(weight, Awaited):
            weight = dense(weight)
        n, width = weight.shape
        step = max(BLOCK // width // TILE * TILE, TILE)
        out = x.new_empty((x.shape[0], n))
        for start in range(0, n, step):
            stop = min(start + step, n)
            values = weight.until(stop) if isinstance(weight, Awaited) else weight
            torch.mm(x, values[start:stop].T, out=out[:, start:stop])
        return out
