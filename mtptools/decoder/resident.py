"""A matrix whose packed bytes lie on a device, multiplied there by kernels that decode it in registers.

Its values are those that loading would have given; products are those of `kernels.launch`, whose tile has 16 rows
whatever the number of rows is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from types import ModuleType

import torch
from torch import Tensor

from mtptools.decoder.kernels.layouts import FLOATS, KINDS, Slab
from mtptools.decoder.runs import Runs

__all__ = ["Resident", "floats", "kernels"]


def kernels() -> ModuleType:
    """`kernels.launch`, which imports triton: not before a kernel is run."""
    from mtptools.decoder.kernels import launch

    return launch


@dataclass(frozen=True, slots=True)
class Resident:
    """A matrix [N, K], or a stack of n of them.

    slabs  one under the other in every matrix: slab i has the rows of all n matrices, [n * N_i, K]
    order  int64 [K]: column c of a slab is column order[c] of the matrix; None: the same
    dtype  of the values, and of products but for `product`'s own
    """

    slabs: tuple[Slab, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    order: Tensor | None = None

    @property
    def how(self) -> str:
        return "resident"

    @property
    def device(self) -> torch.device:
        return self.slabs[0].device

    @property
    def label(self) -> str:
        kinds = " over ".join(dict.fromkeys(slab.kind for slab in self.slabs))
        return f"{kinds} as {str(self.dtype).removeprefix('torch.')}"

    @property
    def at_once(self) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        return sum(slab.nbytes for slab in self.slabs)

    @property
    def _stack(self) -> int:
        """Matrices."""
        return self.shape[0] if len(self.shape) == 3 else 1

    def numel(self) -> int:
        return prod(self.shape)

    def dense(self) -> Tensor:
        """All values, rounded once to `dtype`."""
        n, width = self._stack, self.shape[-1]
        launch = kernels()
        parts = [launch.values(slab, self.dtype).view(n, -1, width) for slab in self.slabs]
        found = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if self.order is not None:
            found = torch.empty_like(found).index_copy_(2, self.order, found)
        return found.view(self.shape)

    def here(self) -> Resident:
        return self

    def matrix(self, index: int) -> Resident:
        heights = (slab.shape[0] // self._stack for slab in self.slabs)
        slabs = (slab.rows(index * n, (index + 1) * n) for slab, n in zip(self.slabs, heights, strict=True))
        return replace(self, slabs=tuple(slabs), shape=self.shape[1:])

    def picked(self, runs: Sequence[tuple[int, int]]) -> Resident:
        """Runs that ascend, where there are several slabs."""
        rows = torch.cat([torch.arange(start, stop) for start, stop in runs]).to(self.device)
        slabs, at = [], 0
        for slab in self.slabs:
            here = rows[(rows >= at) & (rows < at + slab.shape[0])] - at
            slabs += [slab.picked(here)] if len(here) else []
            at += slab.shape[0]
        return replace(self, slabs=tuple(slabs), shape=(len(rows), self.shape[1]))

    def chosen(self, index: slice | Tensor) -> Resident:
        """A range of the rows of a matrix, or those of a tensor of ids; still packed."""
        if not isinstance(index, Tensor):
            start, stop, _ = index.indices(self.shape[0])
            return self._span(start, stop)
        if len(self.slabs) > 1:
            rows = [self._span(row, row + 1) for row in index.tolist()]
            return replace(self, slabs=tuple(row.slabs[0] for row in rows), shape=(len(rows), self.shape[1]))
        return replace(self, slabs=(self.slabs[0].picked(index.to(self.device)),), shape=(len(index), self.shape[1]))

    def _span(self, start: int, stop: int) -> Resident:
        slabs, at = [], 0
        for slab in self.slabs:
            low, high = max(start - at, 0), min(stop - at, slab.shape[0])
            if low < high:
                slabs.append(slab.rows(low, high))
            at += slab.shape[0]
        return replace(self, slabs=tuple(slabs), shape=(stop - start, self.shape[1]))

    def __getitem__(self, index: int | slice | Tensor) -> Tensor:
        if isinstance(index, int):
            return self.matrix(index).dense()
        return self.chosen(index).dense()

    def product(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        x = x if self.order is None else x[:, self.order]
        launch, at = kernels(), 0
        out = x.new_empty((x.shape[0], self.shape[0]))
        for slab in self.slabs:
            launch.product(x, slab, dtype, out, at)
            at += slab.shape[0]
        return out

    def grouped(self, x: Tensor, runs: Runs) -> Tensor:
        tiles, n = runs.tiles, self._stack
        x = (x if self.order is None else x[:, self.order])[tiles.source]
        found = [kernels().grouped(x, slab, slab.shape[0] // n, tiles.experts, self.dtype) for slab in self.slabs]
        return _beside(found)[tiles.back]

    def each(self, x: Tensor, experts: Tensor) -> Tensor:
        launch, at, heights = kernels(), 0, [slab.shape[0] // self._stack for slab in self.slabs]
        x = x if self.order is None else x[:, self.order]
        out = x.new_empty((len(experts), sum(heights)))
        for slab, n in zip(self.slabs, heights, strict=True):
            launch.each(x, slab, n, experts, self.dtype, out, at)
            at += n
        return out

    def by_head(self, x: Tensor) -> Tensor:
        """x [rows, n, K] float32, each of n times its own matrix of the stack: float32 [rows, n, N]."""
        rows, n, width = x.shape
        launch, (slab,) = kernels(), self.slabs
        tiles = -(-rows // launch.BLOCK_M)
        padded = x.new_zeros((n, tiles * launch.BLOCK_M, width))
        padded[:, :rows] = x.transpose(0, 1)
        experts = torch.arange(n * tiles, dtype=torch.int32, device=x.device) // tiles
        out: Tensor = launch.grouped(padded.view(-1, width), slab, self.shape[1], experts, self.dtype)
        return out.view(n, tiles * launch.BLOCK_M, -1)[:, :rows].transpose(0, 1)

    def over(self, fn: Callable[[Tensor], Tensor]) -> Resident:
        """The same in other memory: `fn` of every plane, in order. `order` stays where it is."""
        slabs = (replace(slab, planes=tuple(fn(plane) for plane in slab.planes)) for slab in self.slabs)
        return replace(self, slabs=tuple(slabs))


def floats(values: Tensor) -> Resident:
    """A matrix or a stack of them, as it is, in its own memory: what kernels need to multiply with it."""
    kind, width = FLOATS[values.dtype], values.shape[-1]
    plane = kernels().placed(values).view(-1, width).view(KINDS[kind].fields[0][1])
    return Resident((Slab(kind, (plane,), (len(plane), width)),), tuple(values.shape), values.dtype)


def _beside(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
