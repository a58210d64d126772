"""Which layers stand on which device: contiguous ranges, so that a pass crosses each border once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch

__all__ = ["Placement", "split"]

_HALVINGS: Final = 60
"""Of the range in which the share is searched: what is left is far below a byte."""


@dataclass(frozen=True, slots=True)
class Placement:
    """layer_of  per trunk layer, the number of its device; never falls from one layer to the next

    Embeddings stand on the first device; the final norm, the output matrix and the head on the last.
    """

    devices: tuple[torch.device, ...]
    layer_of: tuple[int, ...]

    @property
    def ranges(self) -> tuple[range, ...]:
        """The layers of each device; a device may have none."""
        counts = [self.layer_of.count(number) for number in range(len(self.devices))]
        stops = list(accumulate(counts))
        return tuple(range(stop - count, stop) for stop, count in zip(stops, counts, strict=True))

    def device_of(self, layer: int) -> torch.device:
        return self.devices[self.layer_of[layer]]


def split(
    devices: Sequence[torch.device], layers: Sequence[int], embed: int, output: int, free: Sequence[int]
) -> Placement:
    """The split whose fullest device is the least full, as a share of what is free there.

    layers  bytes of each;  embed  bytes that stand on the first device;  output  on the last: output matrix and head
    free    bytes per device

    Where nothing fits it is the split that is least too much: the caller compares with `free`.
    """
    room = [max(size, 1) for size in free]
    low, high = 0.0, 1.0
    if _filled(layers, embed, output, room, high) is None:  # too much: still as evenly as can be
        low, high = 1.0, (sum(layers) + embed + output) / min(room) + 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if _filled(layers, embed, output, room, middle) is not None else (middle, high)
    found = _filled(layers, embed, output, room, high) or [0] * len(layers)
    return Placement(tuple(devices), tuple(found))


def _filled(layers: Sequence[int], embed: int, output: int, room: Sequence[int], share: float) -> list[int] | None:
    """Each device in turn takes what it can of `share` of its room; None when layers or the output are left over."""
    loads = [embed] + [0] * (len(room) - 1)
    loads[-1] += output
    out: list[int] = []
    at = 0
    for size in layers:
        while at < len(room) and loads[at] + size > share * room[at]:
            at += 1
        if at == len(room):
            return None
        loads[at] += size
        out.append(at)
    return out if all(load <= share * one for load, one in zip(loads, room, strict=True)) else None
