"""Rows sorted by the expert that each of them meets, and the whole tiles that a kernel takes them in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Final

import torch
from torch import Tensor

__all__ = ["RUN_TILE", "Runs", "Tiles"]

RUN_TILE: Final = 16
"""Rows of a tile of a kernel: each expert's rows fill whole ones."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """source   int64 [tiles * RUN_TILE]: the row that stands there; places over are filled with any
    experts  int32 [tiles]
    back     int64 [rows]: where each row stands
    """

    source: Tensor
    experts: Tensor
    back: Tensor


@dataclass(frozen=True)
class Runs:
    """counts[i] rows, one after the other, meet expert experts[i]."""

    experts: tuple[int, ...]
    counts: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, experts: Sequence[int], device: torch.device) -> Runs:
        """From the expert of each row, in order."""
        found = [(expert, len(list(rows))) for expert, rows in groupby(experts)]
        return cls(tuple(expert for expert, _ in found), tuple(count for _, count in found), device)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(expert, start, stop) of rows."""
        stops = list(accumulate(self.counts))
        return zip(self.experts, [0, *stops[:-1]], stops, strict=True)

    @cached_property
    def tiles(self) -> Tiles:
        source: list[int] = []
        back: list[int] = []
        experts: list[int] = []
        for expert, start, stop in self:
            tiles = -(-(stop - start) // RUN_TILE)
            back += range(len(source), len(source) + stop - start)
            source += [*range(start, stop), *[start] * (tiles * RUN_TILE - (stop - start))]
            experts += [expert] * tiles
        made = torch.tensor(source), torch.tensor(experts, dtype=torch.int32), torch.tensor(back)
        return Tiles(*(one.to(self.device) for one in made))
