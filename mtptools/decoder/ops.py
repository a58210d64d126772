"""Row arithmetic that does not depend on how many rows there are, or on where a row stands among them.

Plain matrix code breaks this: on CPU torch 2.13 a row of `x @ W.T` changes bits with the number of rows, for
float32 even with the row's position, and an elementwise `silu` may take its scalar path for the last elements
of whatever array it is given. So every operation that is not exact by IEEE rules (anything but + - * and
moves) runs on tiles of a fixed number of rows, except where an array's last dimension is whole vectors (`pointwise`):

    float32 on CPU    1 row: a loop, over blocks of a weight that stay in the cache. It costs less than a batch.
    others on CPU     8 rows, the last tile padded with zeros.
    CUDA              16 rows, as well.
    packed on a device   their own kernels (`kernels/`), whose tile is 16 rows too; other products too, where they run.
    norms, gates and the like on a GPU   kernels as well, where they run: a program has one row.

Elementwise + - * of two arrays need no tiles: one rounding each, whatever the layout. Fused multiply-adds
(`addcmul`, `lerp`) are not used, because vector and scalar code may contract them differently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder import kernels
from mtptools.decoder.packed import Weight, matrix
from mtptools.decoder.resident import floats
from mtptools.decoder.runs import Runs

__all__ = [
    "ALIGNMENT",
    "BLOCK",
    "HEAD_CHUNK",
    "TILE",
    "Arithmetic",
    "aligned",
    "by_rows",
    "each_row",
    "exact_settings",
]

TILE: Final = 16
"""Rows of a tile: measured safe for every dtype and instruction set tried; 5 to 7 rows are not."""

ALIGNMENT: Final = 64
"""Bytes. torch allocates on this boundary; a row that starts elsewhere is copied, since BLAS may branch on it."""

CPU_TILE: Final = 8
"""Rows of a tile of a reduced-precision weight on the CPU: costs 1.2 single rows, 16 cost 1.6."""

HEAD_CHUNK: Final = 8192
"""Rows of an output matrix of reduced precision that a GPU widens to float32 at a time."""

VECTOR: Final = 64
"""Values that every instruction set's vectors, unrolled, divide: an array of such rows has no scalar tail."""

GRAIN: Final = 32768
"""Values from which on torch shares an elementwise operation out to threads, and puts tails where the shares end."""

BLOCK: Final = 1 << 20
"""Values of a float32 weight (4 MB, which a shared cache holds) that all rows take before the next are read."""


def exact_settings() -> None:
    """Turn off the reduced-precision modes that CUDA matmuls would otherwise be allowed."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")


def by_rows() -> ModuleType:
    """`kernels.rows`, which imports triton: not before a kernel is run."""
    from mtptools.decoder.kernels import rows

    return rows


def aligned(x: Tensor) -> Tensor:
    """x itself, or a copy of it that starts on the allocator's boundary."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def each_row(x: Tensor) -> list[Tensor]:
    """x [rows, …] as rows of [1, …]."""
    return [x[i : i + 1] for i in range(x.shape[0])]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The tile policy of one device. `tile` is the rows of a float32 tile, `wide_tile` of any other dtype.

    kernels  what is not packed is multiplied by kernels too, and they do what is not a product, a row by itself: norms,
             gates, heads' keys, routing
    """

    device: torch.device
    tile: int
    wide_tile: int = TILE
    kernels: bool = False

    @classmethod
    def on(cls, device: torch.device) -> Arithmetic:
        tiles = (1, CPU_TILE) if device.type == "cpu" else (TILE, TILE)
        return cls(device, *tiles, kernels.chosen(device))

    @property
    def policy(self) -> str:
        tiles = f"{self.device.type}: float32 in tiles of {self.tile}, other dtypes in tiles of {self.wide_tile}"
        return f"{tiles}, rows of all but products by kernels" if self.kernels else tiles

    def rows(self, fn: Callable[[Tensor], Tensor], x: Tensor, tile: int | None = None) -> Tensor:
        """fn over tiles of x [rows, …]; `fn` maps [tile, …] to [tile, …], each row from its own row."""
        tile = self.tile if tile is None else tile
        n = x.shape[0]
        if tile == 1:
            return fn(aligned(x)) if n == 1 else torch.cat([fn(aligned(row)) for row in each_row(x)])
        x = x.contiguous()
        parts = []
        for start in range(0, n, tile):
            part = x[start : start + tile]
            if part.shape[0] < tile:
                padded = x.new_zeros((tile, *x.shape[1:]))
                padded[: part.shape[0]] = part
                part = padded
            parts.append(fn(aligned(part)))
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:n]

    def pointwise(self, fn: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """As `rows`, of an `fn` that works on single values or reduces the last dimension: whole where no tail is.

        On the CPU alone: a GPU's reductions depend on the number of rows.
        """
        whole = self.tile == 1 and x.shape[-1] % VECTOR == 0 and x.numel() < GRAIN
        return fn(x) if whole else self.rows(fn, x)

    def linear(self, x: Tensor, weight: Weight, index: int | None = None) -> Tensor:
        """x [rows, K] float32 times weight [N, K] in its dtype: float32 [rows, N].

        index  weight is a stack [n, N, K], and this is the number of the one that is meant
        """
        weight = weight if index is None else matrix(weight, index)
        own = self._own(x, weight, weight.dtype)
        if own is not None:
            return own
        if not isinstance(weight, Tensor):
            return self.linear(x, weight.dense())
        if weight.dtype == torch.float32:
            if self.tile == 1:
                return self._one_by_one(x, weight)
            return self.rows(lambda part: functional.linear(part, weight), x)
        n, tile = x.shape[0], self.wide_tile
        narrow = torch.zeros((-(-n // tile) * tile, x.shape[1]), dtype=weight.dtype, device=x.device)
        narrow[:n] = x
        parts = [functional.linear(narrow[at : at + tile], weight) for at in range(0, n, tile)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[:n].float()

    def ready(self, weight: Weight) -> Weight:
        """The weight to make many products with: decoded once, unless it is multiplied as it is held."""
        return weight if isinstance(weight, Tensor) or weight.at_once else weight.dense()

    def _own(self, x: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor | None:
        """By a kernel that reads the weight as it is held; None where there is none."""
        if isinstance(weight, Tensor):
            return floats(weight).product(x, dtype) if self.kernels else None
        return weight.product(x, dtype)

    def grouped(self, x: Tensor, stack: Weight, runs: Runs) -> Tensor:
        """As `linear`, of rows that stand sorted by the matrix of a stack [n, N, K] that they meet."""
        out = None if isinstance(stack, Tensor) else stack.grouped(x, runs)
        if out is not None:
            return out
        return torch.cat([self.linear(x[start:stop], stack, expert) for expert, start, stop in runs])

    def each(self, x: Tensor, stack: Weight, experts: Tensor) -> Tensor | None:
        """As `linear`, of each row [rows, K] and the matrices of a stack [n, N, K] that it meets: [rows * used, N].

        experts  int32 [rows * used], which nothing on the host has to know. None: `grouped` it is.
        """
        return stack.each(x, experts) if self.kernels and not isinstance(stack, Tensor) else None

    def _one_by_one(self, x: Tensor, weight: Weight) -> Tensor:
        """The product in float32, whatever the weight's dtype, a row at a time.

        A large weight is taken in blocks, each for all rows: it comes from memory once. One row takes the same blocks.
        """
        rows = [aligned(row) for row in each_row(x)]
        same = isinstance(weight, Tensor) and weight.dtype == torch.float32
        step = max(BLOCK // weight.shape[1] // TILE * TILE, TILE)
        if isinstance(weight, Tensor) and same and weight.shape[0] <= step:  # one block
            parts = [functional.linear(row, weight) for row in rows]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        out = x.new_empty((len(rows), weight.shape[0]))
        wide = None if same else x.new_empty((step, weight.shape[1]))
        for start in range(0, weight.shape[0], step):
            block = weight[start : start + step]
            if wide is not None:  # one buffer: fresh ones of this size are pages that the system clears each time
                block = wide[: block.shape[0]].copy_(block)
            for number, row in enumerate(rows):
                out[number, start : start + step] = functional.linear(row, block)[0]
        return out

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [rows, heads, K] float32 times each head's own weight [heads, N, K]: float32 [rows, heads, N]."""
        if self.kernels:
            return floats(weight).by_head(x)
        turned = weight.transpose(1, 2)
        tile = self.tile if weight.dtype == torch.float32 else self.wide_tile
        narrow = x.to(weight.dtype)
        return self.rows(lambda part: torch.bmm(part.transpose(0, 1), turned).transpose(0, 1), narrow, tile).float()

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        """As `linear`, but always in float32: a bfloat16 output matrix makes exact ties between tokens."""
        own = self._own(x, weight, torch.float32)
        if own is not None:
            return own
        if self.tile == 1:
            return self._one_by_one(x, weight)
        starts = range(0, weight.shape[0], HEAD_CHUNK)
        parts = [self.linear(x, weight[start : start + HEAD_CHUNK].float()) for start in starts]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last dimension, float32; `weight` is the factor itself, never w - 1."""
        if self.kernels:
            normed: Tensor = by_rows().norm(x, weight, eps)
            return normed

        def norm(part: Tensor) -> Tensor:
            return (part * part.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)

        return self.pointwise(norm, x)

    def silu_gate(self, x: Tensor, limit: float = 0.0) -> Tensor:
        """x [rows, 2F] = [gate | up] to silu(gate) * up [rows, F].

        limit  gate above it, and up beyond +- it, are cut first; 0 for none
        """
        if self.kernels:
            gated: Tensor = by_rows().gate(x, limit)
            return gated
        half = x.shape[-1] // 2
        if limit:
            x = torch.cat((x[:, :half].clamp(max=limit), x[:, half:].clamp(-limit, limit)), dim=-1)
        fn = self.pointwise if half % VECTOR == 0 else self.rows
        return fn(lambda part: functional.silu(part[:, :half]).mul_(part[:, half:]), x)
