"""What holds of every kind; the faults that are put in on purpose must break it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mtptools.decoder.kernels import launch
from mtptools.decoder.kernels.layouts import KINDS, Slab
from mtptools.decoder.kernels.table import TILES
from tests.kernels.samples import sample


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """One NaN is as good as another."""
    return bool(((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))).all())


def values_are_exact(kind: str, n: int, k: int) -> None:
    """Bit for bit the other implementation's: extreme scales, subnormal ones, both zeros."""
    slab, want = sample(kind, n, k, tame=False)
    assert same_bits(launch.values(slab, torch.float32).numpy(), want)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> NDArray[np.float32]:
    return values.to(dtype).float().numpy()


def product_is_near(kind: str, m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Products of rounded values are exact in float64; k sums and products in float32 round once each, at most."""
    slab, values = sample(kind, n, k)
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(k))
    a, w = rounded(x, dtype).astype(np.float64), rounded(torch.from_numpy(values), dtype).astype(np.float64)
    got = launch.product(x, slab, dtype).numpy()
    bound = 2 * k * 2.0**-24 * (np.abs(a) @ np.abs(w).T) + 1e-30
    assert got.shape == (m, n)
    assert (np.abs(got - a @ w.T) <= bound).all()


def product_in_order(x: torch.Tensor, slab: Slab, values: NDArray[np.float32], dtype: torch.dtype) -> NDArray:
    """The same arithmetic without triton: 16 rows at a time, piece after piece of the columns."""
    kind, block = KINDS[slab.kind], TILES[slab.kind].block_n
    (m, k), n = x.shape, slab.shape[0]
    a = np.zeros((-(-m // 16) * 16, k), np.float32)
    a[:m] = rounded(x, dtype)
    w = rounded(torch.from_numpy(values), dtype)
    w = np.concatenate([w, np.repeat(w[-1:], -n % block, axis=0)])
    out = np.zeros((len(a), len(w)), np.float32)
    for r in range(0, len(a), 16):
        for c in range(0, len(w), block):
            for i in range(0, k, kind.width):
                piece = np.ascontiguousarray(w[c : c + block, i : i + kind.width])
                out[r : r + 16, c : c + block] = (
                    np.ascontiguousarray(a[r : r + 16, i : i + kind.width]) @ piece.T + out[r : r + 16, c : c + block]
                )
    return out[:m, :n]


def grouped_is_product(kind: str, n: int, k: int, order: list[int], n_experts: int, dtype: torch.dtype) -> None:
    slab, _ = sample(kind, n * n_experts, k)
    x = torch.randn(16 * len(order), k, generator=torch.Generator().manual_seed(n))
    got = launch.grouped(x, slab, n, torch.tensor(order, dtype=torch.int32), dtype)
    for tile, expert in enumerate(order):
        part = slice(16 * tile, 16 * tile + 16)
        want = launch.product(x[part], slab.rows(expert * n, (expert + 1) * n), dtype)
        assert torch.equal(got[part].view(torch.int32), want.view(torch.int32)), f"expert {expert}"


def each_is_product(kind: str, n: int, k: int, experts: list[list[int]], dtype: torch.dtype) -> None:
    """experts  of every row; each product into columns of a wider tensor"""
    n_experts = 1 + max(expert for row in experts for expert in row)
    slab, _ = sample(kind, n * n_experts, k)
    x = torch.randn(len(experts), k, generator=torch.Generator().manual_seed(n))
    out = torch.full((sum(map(len, experts)), n + 3), -1.0)
    launch.each(x, slab, n, torch.tensor(experts, dtype=torch.int32).flatten(), dtype, out, 2)
    rows = [(row, expert) for row, of_row in enumerate(experts) for expert in of_row]
    for got, (row, expert) in zip(out, rows, strict=True):
        want = launch.product(x[row : row + 1], slab.rows(expert * n, (expert + 1) * n), dtype)[0]
        assert torch.equal(got[2 : 2 + n].view(torch.int32), want.view(torch.int32)), f"row {row}, expert {expert}"
    assert (out[:, [0, 1, n + 2]] == -1).all()
