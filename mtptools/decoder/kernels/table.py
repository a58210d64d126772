"""The tile function and the tile sizes of each kind: fixed, whatever the number of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mtptools.decoder.kernels import tiles, tiles_codes, tiles_grid, tiles_k
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.kernels.numbers import INTERPRETED

__all__ = ["ATTENTION", "BLOCK_M", "FUNCTIONS", "SCRATCH", "TILES", "Attention", "Tile"]

BLOCK_M: Final = 16
"""Rows of x a program takes: one matrix instruction's, whatever the number of rows."""

FUNCTIONS: Final[dict[str, Any]] = {
    "F32": tiles.plain,
    "F16": tiles.plain,
    "BF16": tiles.bf16,
    "Q4_0": tiles.q4_0,
    "Q4_1": tiles.q4_1,
    "Q5_0": tiles.q5_0,
    "Q5_1": tiles.q5_1,
    "Q8_0": tiles.q8_0,
    "Q2_K": tiles_k.q2_k,
    "Q3_K": tiles_k.q3_k,
    "Q4_K": tiles_k.q4_k,
    "Q5_K": tiles_k.q5_k,
    "Q6_K": tiles_k.q6_k,
    "IQ1_S": tiles_grid.iq1_s,
    "IQ1_M": tiles_grid.iq1_m,
    "IQ2_XXS": tiles_grid.iq2_xxs,
    "IQ2_XS": tiles_grid.iq2_xs,
    "IQ2_S": tiles_grid.iq2_s,
    "IQ3_XXS": tiles_grid.iq3_xxs,
    "IQ3_S": tiles_grid.iq3_s,
    "IQ4_NL": tiles_codes.iq4_nl,
    "IQ4_XS": tiles_codes.iq4_xs,
    "TQ1_0": tiles.tq1_0,
    "TQ2_0": tiles.tq2_0,
    "MXFP4": tiles_codes.mxfp4,
    "NVFP4": tiles_codes.nvfp4,
    "FP4_E8M0": tiles_codes.fp4_e8m0,
    "F8_BLOCK": tiles_codes.f8_block,
    "MLX_4": tiles_codes.mlx_4,
    "MLX_8": tiles_codes.mlx_8,
}


@dataclass(frozen=True, slots=True)
class Tile:
    """block_n  rows of the matrix a program takes: eight of each warp
    span     columns that it has under way at a time, where the row is whole spans; else half as many, and on
    warps, stages  triton's num_warps and num_stages

    Chosen by counting instructions and bytes (`benchmarks/kernel_bounds.py`), not measured on a device yet. The
    interpreter's cost is by the operation, whatever its size.
    """

    block_n: int = 256 if INTERPRETED else 32
    span: int = 256
    warps: int = 4
    stages: int = 3

    def steps(self, step: int, k: int, *, wide: bool = False) -> int:
        """Steps under way in rows of k columns.

        wide  products are of float32: without matrix instructions a turn of the loop is four times as long
        """
        most = self.span // 2 if wide else self.span
        return next((n for n in (8, 4, 2) if n * step <= most and k % (n * step) == 0), 1)


# What is under way, of x too, is in shared memory, which may be 99 KB: a span of F32 is as large as two of BF16.
TILES: Final = {kind: Tile(span=128) if kind == "F32" else Tile() for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Attention:
    """keys     that are scored at a time, of one chunk of the cache: 64 or a part of it
    columns  of queries and keys that are under way at a time, at most
    values   columns of values that a program mixes, at most; for more there are more programs, which all score
    segment  keys of a program, in whole chunks of the cache: more are more programs
    warps    triton's num_warps
    """

    keys: int = 32
    columns: int = 64
    values: int = 256
    segment: int = 512
    warps: int = 8


# With 64 keys or 4 warps latent attention spills registers (compiled for 9.0); so it needs 35 KB of shared memory.
ATTENTION: Final = Attention()

SCRATCH: Final = 32 << 20
"""Bytes of what rows find in segments, before they are put together: of as many rows as it holds, or of one."""
