"""A weight that lies in other memory than its products are made in: the host's, or another device's.

It is copied to the device each time it is used, packed as it is: of a stack the expert that is meant, of an embedding
the rows that are looked up. The bits are those of the weight on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtptools.decoder.packed import label
from mtptools.decoder.resident import Resident
from mtptools.decoder.runs import Runs

__all__ = ["Offloaded", "offloaded"]


@dataclass(frozen=True, slots=True)
class Offloaded:
    """weight [N, K] or stack [n, N, K] where it lies;  device  where it is used."""

    weight: Tensor | Resident
    device: torch.device

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    @property
    def how(self) -> str:
        return "offloaded"

    @property
    def label(self) -> str:
        return label(self.weight)

    @property
    def at_once(self) -> bool:
        """Only the experts that rows meet are copied, one by one."""
        return False

    def numel(self) -> int:
        return self.weight.numel()

    def here(self) -> Tensor | Resident:
        if isinstance(self.weight, Tensor):
            return self.weight.to(self.device, non_blocking=True)
        return self.weight.to(self.device)

    def dense(self) -> Tensor:
        here = self.here()
        return here if isinstance(here, Tensor) else here.dense()

    def matrix(self, index: int) -> Offloaded:
        weight = self.weight[index] if isinstance(self.weight, Tensor) else self.weight.matrix(index)
        return replace(self, weight=weight)

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        if isinstance(index, int):
            return self.matrix(index).dense()
        if isinstance(self.weight, Resident):
            return replace(self, weight=self.weight.chosen(index)).dense()
        index = index.to(self.weight.device) if isinstance(index, Tensor) else index
        return replace(self, weight=self.weight[index]).dense()

    def picked(self, runs: Sequence[tuple[int, int]]) -> Offloaded:
        if isinstance(self.weight, Resident):
            return replace(self, weight=self.weight.picked(runs))
        return replace(self, weight=torch.cat([self.weight[start:stop] for start, stop in runs]))

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        here = self.here() if isinstance(self.weight, Resident) else None
        return here.product(x, dtype) if isinstance(here, Resident) else None

    def grouped(self, x: Tensor, runs: Runs) -> None:
        return None


def offloaded(weight: Tensor | Resident, device: torch.device) -> Offloaded:
    """A weight in the host's memory, for a device: in pages that a GPU reads by itself, without a copy before."""
    if device.type != "cuda":
        return Offloaded(weight, device)
    return Offloaded(weight.pin_memory() if isinstance(weight, Tensor) else weight.pin(), device)
