"""Copies to a device beside its computing: the few operations that order the two.

What is issued is done later: copies in their order, the computing in its own, and neither waits for the other but where
a mark says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

__all__ = ["CudaLane", "HostLane", "Lane", "Mark", "lane_of"]

Mark: TypeAlias = Any
"""A moment in the order of copies, or in that of the computing. Only the lane that gave it knows more of it."""


class Lane(Protocol):
    def arena(self, nbytes: int) -> Tensor:
        """Memory of the device that copies are made into: uint8 [nbytes], no values."""

    def reached(self) -> Mark:
        """The end of all that the computing was given so far."""

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: Mark) -> Mark:
        """(to, source) of equal shapes and dtypes, begun when the computing has come to `after`; their end."""

    def wait(self, landed: Mark) -> None:
        """What the computing is given from now on begins after these copies."""


class HostLane:
    """Where nothing is asynchronous: a copy is made when it is issued."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def arena(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def reached(self) -> Mark:
        return None

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: Mark) -> Mark:
        for to, source in pairs:
            to.copy_(source)

    def wait(self, landed: Mark) -> None:
        return None


class CudaLane:
    """A stream for copies; the computing is on the device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def arena(self, nbytes: int) -> Tensor:
        found = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        found.record_stream(self.stream)  # or the allocator gives it to others while a last copy is under way
        return found

    def reached(self) -> Mark:
        return torch.cuda.current_stream(self.device).record_event()

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: Mark) -> Mark:
        self.stream.wait_event(after)
        with torch.cuda.stream(self.stream):
            for to, source in pairs:
                to.copy_(source, non_blocking=source.is_pinned())
        return self.stream.record_event()

    def wait(self, landed: Mark) -> None:
        torch.cuda.current_stream(self.device).wait_event(landed)


def lane_of(device: torch.device) -> Lane:
    return CudaLane(device) if device.type == "cuda" else HostLane(device)
