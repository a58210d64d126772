"""Off-loaded layers, copied ahead: while one is computed, the next one's matrices come to the device.

A device has two arenas, as large as the largest layers there; layers take them in turns, so a matrix has the same
address in every pass. A copy into an arena waits for the computing that read it last, and the computing for the copy.
After the last layer comes the first one of the next pass. Where both have the same arena, it is copied when it is
needed, as is every layer that is called out of order. Experts are not known before they are needed: see `offload.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from mtptools.decoder.lane import Lane, Mark, lane_of
from mtptools.decoder.offload import Offloaded, Seat, over
from mtptools.decoder.pipeline import Elsewhere
from mtptools.decoder.resident import Resident
from mtptools.decoder.trunk import Layer, Trunk

__all__ = ["ARENAS", "Ahead", "Belt", "ahead"]

ARENAS: Final = 2

_START: Final = 256
"""Bytes. Planes begin on this boundary, as do torch's own tensors on a GPU, or further."""


@dataclass
class _Arena:
    """holds  the number of the layer that was copied here, or is about to be;  landed  when it is here
    read   up to where the computing may look at it
    """

    memory: Tensor
    read: Mark
    landed: Mark = None
    holds: int | None = None


@dataclass(frozen=True)
class _Load:
    """A layer's matrices in its arena: pairs (to, source) to copy; what to find in each seat when it is at work."""

    pairs: tuple[tuple[Tensor, Tensor], ...]
    seats: tuple[tuple[Seat, Tensor | Resident], ...]


class Belt:
    """The layers of one device, and the arenas that they take in turns."""

    def __init__(self, layers: Sequence[Sequence[Offloaded]], lane: Lane) -> None:
        """layers  the matrices of each, in the order in which they are computed; all of one device"""
        self.lane = lane
        sizes = [sum(_room(plane) for matrix in some for plane in _planes(matrix)) for some in layers]
        with torch.inference_mode(False):  # or they could not be written to outside of it
            self.arenas = [_Arena(lane.arena(max(sizes[at::ARENAS])), None) for at in range(min(ARENAS, len(layers)))]
            self.loads = [_load(some, self.arenas[n % ARENAS].memory) for n, some in enumerate(layers)]
        for arena in self.arenas:
            arena.read = lane.reached()  # who had this memory before may still be at it

    @contextmanager
    def at_work(self, number: int) -> Iterator[None]:
        """Inside, the matrices of a layer are found on the device, and the next one's are on their way."""
        arena, load = self._bring(number), self.loads[number]
        following = (number + 1) % len(self.loads)
        if following % ARENAS != number % ARENAS:
            self._bring(following)
        self.lane.wait(arena.landed)
        for seat, here in load.seats:
            seat.here = here
        try:
            yield
        finally:
            for seat, _ in load.seats:
                seat.here = None
            arena.read = self.lane.reached()

    def _bring(self, number: int) -> _Arena:
        arena = self.arenas[number % ARENAS]
        if arena.holds != number:
            arena.holds = None  # should the copy fail
            arena.landed = self.lane.copy(self.loads[number].pairs, arena.read)
            arena.holds = number
        return arena


def _planes(matrix: Offloaded) -> list[Tensor]:
    found: list[Tensor] = []
    over(matrix.weight, lambda plane: found.append(plane) or plane)  # type: ignore[func-returns-value]
    return found


def _room(plane: Tensor) -> int:
    return -(-plane.nbytes // _START) * _START


def _load(matrices: Sequence[Offloaded], memory: Tensor) -> _Load:
    pairs: list[tuple[Tensor, Tensor]] = []
    at = 0

    def placed(plane: Tensor) -> Tensor:
        nonlocal at
        to = memory[at : at + plane.nbytes].view(plane.dtype).view(plane.shape)
        pairs.append((to, plane))
        at += _room(plane)
        return to

    seats = tuple((matrix.seat, over(matrix.weight, placed)) for matrix in matrices if matrix.seat is not None)
    return _Load(tuple(pairs), seats)


@dataclass(frozen=True)
class Ahead(Elsewhere):
    """A layer whose matrices come by a belt. number: of the layer, among the belt's."""

    belt: Belt
    number: int

    def mix(self, x: Tensor, cache: Any, position: int) -> Tensor:
        with self.belt.at_work(self.number):
            return super().mix(x, cache, position)

    def feed(self, x: Tensor, ids: Sequence[int]) -> Tensor:
        with self.belt.at_work(self.number):
            return super().feed(x, ids)

    def forward(self, x: Tensor, cache: Any, position: int, ids: Sequence[int]) -> Tensor:
        with self.belt.at_work(self.number):
            return super().forward(x, cache, position, ids)


def ahead(trunk: Trunk) -> Trunk:
    """The trunk with its off-loaded layers on belts, one for each device; any other trunk as it is."""
    layers: dict[torch.device, list[list[Offloaded]]] = {}
    places: list[int | None] = []
    for block in trunk.blocks:
        found = _matrices(block)
        places.append(None)
        if isinstance(block, Elsewhere) and found:
            there = layers.setdefault(block.device, [])
            places[-1] = len(there)
            there.append(found)
    belts = {device: Belt(some, lane_of(device)) for device, some in layers.items()}
    blocks = [
        Ahead(block.layer, block.device, block.to, belts[block.device], place)
        if isinstance(block, Elsewhere) and place is not None
        else block
        for block, place in zip(trunk.blocks, places, strict=True)
    ]
    return replace(trunk, blocks=tuple(blocks))


def _matrices(layer: Layer) -> list[Offloaded]:
    """Those that every token is multiplied with."""
    return [one for _, one in layer.matrices() if isinstance(one, Offloaded) and one.seat is not None]
