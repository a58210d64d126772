# mypy: disable-error-code="import-untyped"
"""Products and values of slabs: the way from torch into the programs.

Everything that the programs depend on is fixed before the first row is seen: the tile table here, the kind and columns
of the slab, the compute dtype. The number of rows chooses how many programs run, never which one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import cache
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from mtptools.decoder.kernels import programs
from mtptools.decoder.kernels.layouts import KINDS, Slab
from mtptools.decoder.kernels.numbers import INTERPRETED
from mtptools.decoder.kernels.table import ATTENTION, BLOCK_M, FUNCTIONS, TILES, Tile

__all__ = [
    "BLOCK_M",
    "TILES",
    "TYPES",
    "current",
    "each",
    "fingerprint",
    "grouped",
    "placed",
    "power",
    "product",
    "values",
]

TYPES: Final[dict[torch.dtype, Any]] = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
"""As programs know them."""


def product(x: Tensor, slab: Slab, dtype: torch.dtype, out: Tensor | None = None, at: int = 0) -> Tensor:
    """x [rows, K] float32 times the slab's matrix [N, K]: float32 [rows, N].

    dtype  x and the decoded weight are rounded to it, once each; their products are added in float32, in an order
           that is the same for every row
    out    float32 [rows, M], contiguous, whose columns [at, at + N) are written, for slabs that stand one under the
           other; None: a new one
    """
    n_rows, n = x.shape[0], slab.shape[0]
    if out is None:
        out = x.new_empty((n_rows, n))
    return _launch(x, slab, n, None, dtype, out, at)


def grouped(x: Tensor, slab: Slab, n: int, experts: Tensor, dtype: torch.dtype) -> Tensor:
    """x [16 T, K] float32, each 16 rows times the matrix that `experts` names: float32 [16 T, n].

    slab     a stack of matrices of n rows each;  of the ones that are not named nothing is read
    experts  int32 [T], on x's device; each below the number of matrices, which is not checked

    The bits are those of `product` with rows [e n, (e + 1) n) of the slab.
    """
    return _launch(x, slab, n, experts, dtype, x.new_empty((x.shape[0], n)), 0)


def each(x: Tensor, slab: Slab, n: int, experts: Tensor, dtype: torch.dtype, out: Tensor, at: int = 0) -> Tensor:
    """x [rows, K] float32, each row times the matrices that `experts` names for it, into columns of out.

    experts  int32 [rows * used], on x's device, where nothing on the host has to know them
    out      float32 [rows * used, M], contiguous, whose columns [at, at + n) are written

    As `grouped`, but every product is a program of its own: a matrix that several rows meet is read for each.
    """
    return _launch(x, slab, n, experts, dtype, out, at, used=len(experts) // len(x))


def values(slab: Slab, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K], decoded in float32 and rounded to `dtype` once."""
    n, k = slab.shape
    made = torch.float32 if INTERPRETED else dtype  # the interpreter has no rounding to bfloat16
    out = torch.empty((n, k), dtype=made, device=slab.device)
    if n:
        tile, kind = TILES[slab.kind], KINDS[slab.kind]
        grid = (-(-n // tile.block_n), -(-k // kind.step))
        with current(slab.device):
            programs.values[grid](_planes(slab), out, n, block_n=tile.block_n, **_constants(slab), **_options(tile))
    return out.to(dtype)


def _launch(
    x: Tensor,
    slab: Slab,
    n: int,
    experts: Tensor | None,
    dtype: torch.dtype,
    out: Tensor,
    at: int,
    used: int = 0,
) -> Tensor:
    m, tile = out.shape[0], TILES[slab.kind]
    if m and n:
        x = placed(x)
        grid = (m if used else -(-m // BLOCK_M), -(-n // tile.block_n))
        with current(slab.device):
            programs.product[grid](
                *(x, _planes(slab), experts, out, m, n, out.stride(0), at, used),
                steps=tile.steps(KINDS[slab.kind].step, slab.shape[1], wide=dtype == torch.float32),
                block_n=tile.block_n,
                dtype=TYPES[dtype],
                alone=used > 0,
                **_constants(slab),
                **_options(tile),
            )
    return out


def current(device: torch.device) -> AbstractContextManager[Any]:
    """triton launches on the current device, whatever the tensors' is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def placed(x: Tensor) -> Tensor:
    """x, or a copy, in one piece, its address a multiple of 16: for any other triton compiles another program."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def power(n: int) -> int:
    """The next power of two, 16 or above."""
    return max(16, int(triton.next_power_of_2(n)))


def _constants(slab: Slab) -> dict[str, Any]:
    kind = KINDS[slab.kind]
    return {
        "k": slab.shape[1],
        "group": slab.group,
        "tile": FUNCTIONS[slab.kind],
        "step": kind.step,
        "parts": kind.parts,
    }


def _options(tile: Tile) -> dict[str, Any]:
    """Not fusing multiply and add is what makes values those of gguf-py."""
    return {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": False}


def _planes(slab: Slab) -> tuple[Tensor, ...]:
    return (*slab.planes, _grid(slab.kind, slab.device)) if KINDS[slab.kind].grid else slab.planes


@cache
def _grid(kind: str, device: torch.device) -> Tensor:
    """gguf-py's grid of a type, int8, flat: small whole numbers."""
    from gguf import quants

    codec = getattr(quants, kind)
    codec.init_grid()
    return torch.from_numpy(codec.grid.reshape(-1).astype("int8")).to(device)


def fingerprint() -> dict[str, Any]:
    """What bits depend on, beside the device: triton's version, the tile table, the sizes of the others."""
    from mtptools.decoder.kernels import delta, rows  # which import this

    table = {
        kind: f"{BLOCK_M} x {t.block_n} x {KINDS[kind].width} of {t.span}, {t.warps} warps, {t.stages} stages"
        for kind, t in TILES.items()
    }
    return {
        "triton": triton.__version__,
        "interpreted": bool(INTERPRETED),
        "tiles": table,
        "attention": asdict(ATTENTION),
        "norms": f"{rows.SHARE} values a thread",
        "states": f"{delta.BLOCK} columns a program",
    }
