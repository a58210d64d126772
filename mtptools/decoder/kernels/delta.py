# mypy: disable-error-code="import-untyped"
"""The gated delta rule of a pass of any number of rows, in three launches: the way from torch into its programs.

As `DeltaNet.step` row by row, in float32. The number of rows, and of those whose state is kept, is how often a loop
runs and where it stores, never which program runs, nor the order in which one adds. Nothing is read on the host.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.deltanet import L2_EPS, DeltaNetWeights
from mtptools.decoder.kernels import programs_delta as programs
from mtptools.decoder.kernels.launch import current, placed, power
from mtptools.decoder.kernels.numbers import INTERPRETED
from mtptools.decoder.ring import Ring

__all__ = ["BLOCK", "delta"]

BLOCK: Final = 64 if INTERPRETED else 8
"""Columns of a head's memory that a program holds in registers: with one warp no sum goes over shared memory.

The interpreter's cost is by the operation, whatever its size.
"""

_OPTIONS: Final = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": False}


def delta(
    fused: Tensor,
    weights: DeltaNetWeights,
    n_k_heads: int,
    n_v_heads: int,
    k_dim: int,
    v_dim: int,
    eps: float,
    ring: Ring,
    kept: int,
) -> Tensor:
    """What goes into a layer's `out`: reads, normed and gated, float32 [rows, n_v_heads * v_dim].

    fused    float32 [rows, 2 * n_k_heads * k_dim + 2 * n_v_heads * v_dim + 2 * n_v_heads], as `DeltaNetWeights` orders
             it; the other weights are on its device
    k_dim, v_dim  of one head;  n_v_heads is a multiple of n_k_heads
    ring     the state before the pass; the states after the last `kept` rows are written to its next slots
    kept     0 to rows, and less than the ring's slots

    The state after a row, and what the row reads, have the same bits however rows are cut into passes.
    ValueError: tensors that the programs would read, or write, beyond their ends.
    """
    sizes = {"k_heads": n_k_heads, "v_heads": n_v_heads, "k_dim": k_dim, "v_dim": v_dim}
    channels = 2 * n_k_heads * k_dim + n_v_heads * v_dim
    rows, slots = len(fused), len(ring.conv)
    kernel = len(weights.conv)
    _fits("fused", fused, (rows, channels + n_v_heads * v_dim + 2 * n_v_heads))
    _fits("conv", weights.conv, (kernel, channels))
    _fits("decay", weights.decay, (n_v_heads,))
    _fits("dt", weights.dt, (n_v_heads,))
    _fits("norm", weights.norm, (v_dim,))
    _fits("the ring's conv", ring.conv, (slots, kernel - 1, channels), whole=True)
    _fits("the ring's memory", ring.memory, (slots, n_v_heads, k_dim, v_dim), whole=True)
    _fits("the ring's at", ring.at, (1,), dtype=torch.int64)
    if not 0 <= kept <= min(rows, slots - 1):
        raise ValueError(f"{kept} states of {rows} rows cannot be kept in a ring of {slots} slots")
    fused = placed(fused)
    brought = fused.new_empty((rows, channels + 2 * n_v_heads))
    reads = fused.new_empty((rows, n_v_heads * v_dim))
    if not rows:
        return reads
    block = min(BLOCK, power(v_dim))
    padded = {"k_padded": power(k_dim), "v_padded": power(v_dim)}
    with current(fused.device):
        programs.bring[(rows, 2 * n_k_heads + n_v_heads)](
            *(fused, placed(weights.conv), placed(weights.decay), placed(weights.dt)),
            *(ring.conv, ring.at, brought, rows, kept, slots),
            **{"kernel": kernel, "l2_eps": L2_EPS, "scale": k_dim**-0.5} | sizes | padded | _OPTIONS,
        )
        programs.remember[(n_v_heads, -(-v_dim // block))](
            *(brought, ring.memory, ring.at, reads, rows, kept, slots),
            **{"block": block, "k_padded": padded["k_padded"]} | sizes | _OPTIONS,
        )
        programs.gate[(rows, n_v_heads)](
            *(fused, placed(weights.norm), reads),
            **{"eps": eps, "v_padded": padded["v_padded"]} | sizes | _OPTIONS,
        )
    return reads


def _fits(
    name: str, x: Tensor, shape: tuple[int, ...], *, dtype: torch.dtype = torch.float32, whole: bool = False
) -> None:
    """whole: it is written in place, so it cannot be moved to where the programs need it."""
    if x.shape != shape or x.dtype != dtype:
        raise ValueError(f"{name} is {x.dtype} {list(x.shape)}, not {dtype} {list(shape)}")
    if whole and (not x.is_contiguous() or x.data_ptr() % 16):
        raise ValueError(f"{name} must be in one piece, from an address on that is a multiple of 16")
