"""Arithmetic that is free to take all rows at a time: fast, but a row's bits depend on the rows beside it.

For passes over a given text, where nothing is compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder import kernels
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight, dense, matrix

__all__ = ["Free"]

ROWS: Final = 256
"""Queries that attention takes at a time."""


@dataclass(frozen=True, slots=True)
class Free(Arithmetic):
    @classmethod
    def on(cls, device: torch.device) -> Free:
        return cls(device, ROWS, ROWS, kernels.chosen(device))

    @property
    def policy(self) -> str:
        return f"{self.device.type}: free, all rows at a time"

    def rows(self, fn: Callable[[Tensor], Tensor], x: Tensor, tile: int | None = None) -> Tensor:
        return fn(x)

    def ready(self, weight: Weight) -> Weight:
        return dense(weight)

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        return functional.linear(x, dense(weight).float())

    def linear(self, x: Tensor, weight: Weight, index: int | None = None) -> Tensor:
        values = dense(weight if index is None else matrix(weight, index))
        return functional.linear(x.to(values.dtype), values).float()
