"""Layers on several devices, one range after the other: the residual stream moves, and bits stay what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mtptools.decoder.cache import LayerCache
from mtptools.decoder.packed import Weight
from mtptools.decoder.trunk import Layer

__all__ = ["Elsewhere", "Places"]


class Places(Protocol):
    """Which of `devices` each layer of the trunk is on, in ascending order: see `placement.py`."""

    @property
    def devices(self) -> tuple[torch.device, ...]: ...

    @property
    def layer_of(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Elsewhere:
    """A layer on a device that the residual stream may have to come to.

    to  where the stream goes from it
    """

    layer: Layer
    device: torch.device
    to: torch.device

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        return self.layer.matrices()

    def new_cache(self) -> LayerCache:
        return self.layer.new_cache()

    def shifted(self, by: float) -> Elsewhere:
        return replace(self, layer=self.layer.shifted(by))

    def mix(self, x: Tensor, cache: Any, position: int) -> Tensor:
        return self.layer.mix(x.to(self.device), cache, position)

    def feed(self, x: Tensor, ids: Sequence[int]) -> Tensor:
        return self.layer.feed(x.to(self.device), ids).to(self.to)

    def forward(self, x: Tensor, cache: Any, position: int, ids: Sequence[int]) -> Tensor:
        return self.layer.forward(x.to(self.device), cache, position, ids).to(self.to)
