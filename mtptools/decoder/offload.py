"""A weight that lies in other memory than its products are made in: the host's, or another device's.

Packed as it is, it is copied to where it is used: a layer's matrices ahead of their use (`ahead.py`), of a stack the
experts that rows meet, of an embedding the rows that are looked up; anything else when it is asked for. The bits are
those of the weight on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.devices import free_memory, gib
from mtptools.decoder.packed import label
from mtptools.decoder.resident import Resident
from mtptools.decoder.runs import Runs
from mtptools.errors import SystemFailure

__all__ = ["BATCH", "Offloaded", "Seat", "offloaded", "over"]

BATCH: Final = 256 << 20
"""Bytes of experts that are copied before they are multiplied, unless one is larger; fewer where rows meet fewer."""

_HOST: Final = torch.device("cpu")


@dataclass(slots=True)
class Seat:
    """here  the matrix on the device while its layer is at work, else None"""

    here: Tensor | Resident | None = None


@dataclass(frozen=True, slots=True)
class Offloaded:
    """weight [N, K] or stack [n, N, K] where it lies;  device  where it is used.

    seat  of a whole weight: where it is looked for first
    """

    weight: Tensor | Resident
    device: torch.device
    seat: Seat | None = field(default=None, compare=False)

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
        return isinstance(self.weight, Resident)

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def numel(self) -> int:
        return self.weight.numel()

    def here(self) -> Tensor | Resident:
        if self.seat is not None and self.seat.here is not None:
            return self.seat.here
        return over(self.weight, lambda plane: _copied(plane, self.device))

    def dense(self) -> Tensor:
        here = self.here()
        return here if isinstance(here, Tensor) else here.dense()

    def matrix(self, index: int) -> Offloaded:
        return self._part(self.weight[index] if isinstance(self.weight, Tensor) else self.weight.matrix(index))

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        if isinstance(index, int):
            return self.matrix(index).dense()
        if isinstance(self.weight, Resident):
            return self._part(self.weight.chosen(index)).dense()
        index = index.to(self.weight.device) if isinstance(index, Tensor) else index
        return self._part(self.weight[index]).dense()

    def picked(self, runs: Sequence[tuple[int, int]]) -> Offloaded:
        if isinstance(self.weight, Resident):
            return self._part(self.weight.picked(runs))
        return self._part(torch.cat([self.weight[start:stop] for start, stop in runs]))

    def _part(self, weight: Tensor | Resident) -> Offloaded:
        return Offloaded(weight, self.device)

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        here = self.here() if isinstance(self.weight, Resident) else None
        return here.product(x, dtype) if isinstance(here, Resident) else None

    def grouped(self, x: Tensor, runs: Runs) -> Tensor | None:
        """All experts of a batch are copied before the first is multiplied. None of values: an expert at a time."""
        if not isinstance(self.weight, Resident):
            return None
        most = max(1, BATCH * self.shape[0] // self.weight.nbytes)
        parts, at = [], 0
        for first in range(0, len(runs.experts), most):
            experts, counts = (some[first : first + most] for some in (runs.experts, runs.counts))
            rows, found = x[at : at + sum(counts)], Runs(tuple(range(len(experts))), counts, runs.device)
            parts.append(self._experts(self.weight, experts).grouped(rows, found))
            at += len(rows)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def each(self, x: Tensor, experts: Tensor) -> None:
        """None: the host has to know which experts it copies."""

    def _experts(self, stack: Resident, experts: Sequence[int]) -> Resident:
        """A stack of these alone, on the device."""

        def copied(plane: Tensor) -> Tensor:
            height, at = plane.shape[0] // stack.shape[0], 0
            out = torch.empty((len(experts) * height, *plane.shape[1:]), dtype=plane.dtype, device=self.device)
            for start, stop in _spans(experts):
                source = plane[start * height : stop * height]
                out[at : at + len(source)].copy_(source, non_blocking=plane.is_pinned())
                at += len(source)
            return out

        found = stack.over(copied)
        slabs = (replace(slab, shape=(len(slab.planes[0]), slab.shape[1])) for slab in found.slabs)
        return replace(found, slabs=tuple(slabs), shape=(len(experts), *stack.shape[1:]))


def over(weight: Tensor | Resident, fn: Callable[[Tensor], Tensor]) -> Tensor | Resident:
    """The weight in other memory: `fn` of every plane, in order; of a tensor of values that is the tensor."""
    return fn(weight) if isinstance(weight, Tensor) else weight.over(fn)


def _copied(plane: Tensor, device: torch.device) -> Tensor:
    """In the order of the device's work. What is not pinned the host waits for."""
    return plane.to(device, non_blocking=plane.is_cuda or plane.is_pinned())


def _spans(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The runs [start, stop) of numbers that follow each other."""
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield found[0], found[-1] + 1


def offloaded(weight: Tensor | Resident, device: torch.device) -> Offloaded:
    """A weight in the host's memory, for a device: in pages that a GPU reads by itself, beside its computing.

    Raises SystemFailure where the host gives no such pages.
    """
    if isinstance(weight, Resident) and weight.order is not None:  # small, and needed wherever a product is
        weight = replace(weight, order=weight.order.to(device))
    return Offloaded(over(weight, _pinned) if device.type == "cuda" else weight, device, Seat())


def _pinned(plane: Tensor) -> Tensor:
    try:
        return plane.pin_memory()
    except RuntimeError as error:
        free = free_memory(_HOST)
        left = "" if free is None else f"; {gib(free)} are free"
        raise SystemFailure(
            f"the system pins no more of the CPU's memory, {gib(plane.nbytes)} were asked for{left}: {error}",
            where="--offload",
            hint="free memory, or raise the limit of what may be locked (ulimit -l); or --device cpu",
        ) from error
