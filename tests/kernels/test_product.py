"""Products: near the exact ones, in the order that is promised, and each row by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mtptools.decoder.kernels import launch
from mtptools.decoder.kernels.layouts import KINDS
from tests.kernels.checks import each_is_product, grouped_is_product, product_in_order, product_is_near
from tests.kernels.samples import block_of, sample

FLOAT, BRAIN, HALF = torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize("kind", KINDS)
def test_near(kind: str) -> None:
    product_is_near(kind, 3, 40, max(64, block_of(kind)), BRAIN)


@pytest.mark.parametrize(("dtype", "m"), [(FLOAT, 1), (HALF, 17)])
@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_K"])
def test_near_in_other_types(kind: str, dtype: torch.dtype, m: int) -> None:
    product_is_near(kind, m, 257, 256, dtype)


@pytest.mark.parametrize("kind", ["F32", "BF16", "F16"])
def test_any_columns(kind: str) -> None:
    product_is_near(kind, 2, 5, 100, FLOAT)


@pytest.mark.parametrize("dtype", [FLOAT, BRAIN, HALF])
@pytest.mark.parametrize(("kind", "k"), [("Q4_K", 512), ("Q8_0", 288), ("Q4_0", 96), ("BF16", 320)])
def test_order(kind: str, k: int, dtype: torch.dtype) -> None:
    """The very bits of the same sums made by numpy, whatever number of steps is under way at a time."""
    slab, values = sample(kind, 30, k)
    x = torch.randn(18, k, generator=torch.Generator().manual_seed(1))
    got = launch.product(x, slab, dtype).numpy()
    want = product_in_order(x, slab, values, dtype)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(("kind", "dtype"), [("Q4_0", BRAIN), ("BF16", FLOAT)])
def test_rows_by_themselves(kind: str, dtype: torch.dtype) -> None:
    """A row has the same bits alone, at each of 16 positions, among others of whatever size."""
    k = 64
    slab, _ = sample(kind, 33, k)
    noise = torch.Generator().manual_seed(2)
    row = torch.randn(1, k, generator=noise)
    alone = launch.product(row, slab, dtype)
    for scale in (1.0, 1e6):
        for rows in (1, 4, 16, 33):
            for position in range(min(rows, 16)):
                x = scale * torch.randn(rows, k, generator=noise)
                at = position if rows < 33 else 2 * position + 1
                x[at] = row
                got = launch.product(x, slab, dtype)[at]
                assert torch.equal(got.view(torch.int32), alone[0].view(torch.int32)), (rows, at)


def test_into_columns() -> None:
    """Slabs one under the other write side by side, and nowhere else."""
    (first, _), (second, _) = sample("Q8_0", 5, 64), sample("Q4_0", 3, 64)
    x = torch.randn(2, 64)
    out = torch.full((2, 11), -1.0)
    assert launch.product(x, first, BRAIN, out, 1) is out
    launch.product(x, second, BRAIN, out, 6)
    assert torch.equal(out[:, 1:6], launch.product(x, first, BRAIN))
    assert torch.equal(out[:, 6:9], launch.product(x, second, BRAIN))
    assert (out[:, [0, 9, 10]] == -1).all()


def test_rows_that_are_not_contiguous_or_aligned() -> None:
    slab, _ = sample("Q8_0", 5, 64)
    wide = torch.randn(3, 65)
    want = launch.product(wide[:, 1:].clone(), slab, FLOAT)
    assert torch.equal(launch.product(wide[:, 1:], slab, FLOAT), want)
    flat = torch.cat((torch.zeros(1), wide[:, 1:].reshape(-1)))
    assert torch.equal(launch.product(flat[1:].view(3, 64), slab, FLOAT), want)


def test_nothing() -> None:
    slab, _ = sample("Q8_0", 5, 64)
    assert launch.product(torch.empty(0, 64), slab, FLOAT).shape == (0, 5)
    assert launch.product(torch.ones(2, 64), slab.rows(2, 2), FLOAT).shape == (2, 0)


@pytest.mark.parametrize("kind", ["Q4_K", "MLX_4", "F8_BLOCK", "IQ2_XS"])
def test_grouped(kind: str) -> None:
    grouped_is_product(kind, 17, 256, [3, 0, 3], 4, BRAIN)


@pytest.mark.parametrize("kind", ["Q4_K", "F8_BLOCK", "BF16"])
def test_each(kind: str) -> None:
    each_is_product(kind, 17, 256, [[3, 0], [2, 3], [0, 1]], BRAIN)


def test_grouped_reads_what_is_named() -> None:
    """Of experts that no row is sent to, not even a NaN is noticed."""
    slab, _ = sample("Q8_0", 4 * 9, 64)
    slab.planes[0][: 2 * 9] = torch.nan
    experts = torch.tensor([2, 3], dtype=torch.int32)
    assert launch.grouped(torch.randn(32, 64), slab, 9, experts, BRAIN).isfinite().all()
    assert launch.grouped(torch.randn(32, 64), slab, 9, experts - 1, BRAIN)[:16].isnan().all()
