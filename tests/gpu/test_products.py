"""Products on the device: near the exact ones, each row by itself, experts as single matrices."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from mtptools.decoder.kernels import launch
from mtptools.decoder.kernels.layouts import KINDS, Slab
from mtptools.decoder.resident import floats
from tests.gpu.cases import DTYPES, on
from tests.gpu.rows import COUNTS, rows_by_themselves, same
from tests.kernels.checks import rounded
from tests.kernels.samples import Sample, sample

SHAPES = ((333, 5120), (77, 17408))
"""Widths of a 27B's hidden states and of its feed-forward part; rows that are not whole tiles. Each is compiled."""

EVERY = [(kind, dtype, *shape) for kind in KINDS for shape in SHAPES for dtype in DTYPES]
HERE = [("Q4_0", "bfloat16", 77, 64), ("BF16", "float32", 40, 64)]


@lru_cache(maxsize=2)
def made(kind: str, n: int, k: int) -> Sample:
    return sample(kind, n, k)


@pytest.mark.parametrize(("device", "kind", "dtype", "n", "k"), on(EVERY, HERE))
def test_rows_by_themselves(device: torch.device, kind: str, dtype: str, n: int, k: int) -> None:
    slab = made(kind, n, k)[0].to(device)
    counts = COUNTS if device.type == "cuda" else (1, 4, 17)
    rows_by_themselves(lambda x: launch.product(x, slab, DTYPES[dtype]), k, device, counts)


@pytest.mark.parametrize(("device", "kind", "dtype", "n", "k"), on(EVERY, HERE))
def test_near(device: torch.device, kind: str, dtype: str, n: int, k: int) -> None:
    """Products of rounded values are exact in float64; each of k float32 sums may be cut, not rounded, once."""
    slab, values = made(kind, n, k)
    weight = rounded(torch.from_numpy(values), DTYPES[dtype]).astype(np.float64)
    for m in (1, 5, 33):
        x = torch.randn(m, k, generator=torch.Generator().manual_seed(m))
        got = launch.product(x.to(device), slab.to(device), DTYPES[dtype]).cpu().numpy()
        a = rounded(x, DTYPES[dtype]).astype(np.float64)
        bound = 2 * k * 2.0**-24 * (np.abs(a) @ np.abs(weight).T) + 1e-30
        assert (np.abs(got - a @ weight.T) <= bound).all(), m


@pytest.mark.parametrize(
    ("device", "kind", "dtype"),
    on([(kind, dtype) for kind in KINDS for dtype in DTYPES], [("Q8_0", "bfloat16")]),
)
def test_rows_of_the_matrix(device: torch.device, kind: str, dtype: str) -> None:
    """A part of the matrix starts at any address, and gives the columns of the whole."""
    k = 5120 if device.type == "cuda" else 256
    slab = sample(kind, 70, k)[0].to(device)
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(0)).to(device)
    whole = launch.product(x, slab, DTYPES[dtype])
    for start, stop in ((1, 70), (7, 8), (32, 69)):
        assert same(launch.product(x, slab.rows(start, stop), DTYPES[dtype]), whole[:, start:stop])


@pytest.mark.parametrize(
    ("device", "kind", "dtype", "n", "k"),
    on(
        [(kind, dtype, 65, 5120) for kind in KINDS for dtype in DTYPES],
        [("MLX_4", "bfloat16", 17, 64)],
    ),
)
def test_grouped_is_product(device: torch.device, kind: str, dtype: str, n: int, k: int) -> None:
    slab = sample(kind, n * 4, k)[0].to(device)
    order = [3, 0, 3, 1]
    x = torch.randn(16 * len(order), k, generator=torch.Generator().manual_seed(n)).to(device)
    experts = torch.tensor(order, dtype=torch.int32, device=device)
    got = launch.grouped(x, slab, n, experts, DTYPES[dtype])
    for place, expert in enumerate(order):
        part = slice(16 * place, 16 * place + 16)
        want = launch.product(x[part], slab.rows(expert * n, (expert + 1) * n), DTYPES[dtype])
        assert same(got[part], want), f"expert {expert}"


@pytest.mark.parametrize(("device", "kind"), on(["Q4_K", "BF16"], ["Q4_0"]))
def test_again(device: torch.device, kind: str) -> None:
    """The same launch gives the same bits: no order is left to chance."""
    n, k = (333, 5120) if device.type == "cuda" else (40, 64)
    slab = made(kind, n, k)[0].to(device)
    x = torch.randn(33, k, generator=torch.Generator().manual_seed(3)).to(device)
    first = launch.product(x, slab, torch.bfloat16)
    assert all(same(launch.product(x, slab, torch.bfloat16), first) for _ in range(20 if device.type == "cuda" else 1))


@pytest.mark.parametrize(
    ("device", "kind", "times", "k"), on([("Q8_0", 2400, 17408), ("Q4_K", 4200, 17408)], [("Q8_0", 2, 64)])
)
def test_more_than_two_gigabytes(device: torch.device, kind: str, times: int, k: int) -> None:
    """Addresses that 32 bits do not hold: the last rows of a matrix and the last matrix of a stack."""
    small = made(kind, 64, k)[0].to(device)
    planes = tuple(plane.repeat(times, 1) for plane in small.planes)
    large = Slab(kind, planes, (64 * times, k), small.group)
    x = torch.randn(16, k, generator=torch.Generator().manual_seed(4)).to(device)
    want = launch.product(x, small, torch.bfloat16)
    assert same(launch.product(x, large, torch.bfloat16)[:, -64:], want)
    last = torch.tensor([times - 1], dtype=torch.int32, device=device)
    assert same(launch.grouped(x, large, 64, last, torch.bfloat16), want)


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "number of rows": lambda y: y * (1 + (len(y) > 1) * 2.0**-20),
    "position": lambda y: y * (1 + (torch.arange(len(y), device=y.device) % 16 == 3)[:, None] * 2.0**-20),
    "neighbours": lambda y: y + y[:1] * 2.0**-20 * (len(y) > 1),
}


@pytest.mark.parametrize(("device", "fault"), on(FAULTS, FAULTS))
def test_a_dependence_is_seen(device: torch.device, fault: str) -> None:
    slab = made("Q4_0", 40, 64)[0].to(device)
    with pytest.raises(AssertionError, match="row"):
        rows_by_themselves(lambda x: FAULTS[fault](launch.product(x, slab, torch.float32)), 64, device, counts=(1, 16))


@pytest.mark.parametrize(("device", "dtype", "heads"), on([(dtype, 128) for dtype in DTYPES], [("bfloat16", 3)]))
def test_each_head_with_its_own(device: torch.device, dtype: str, heads: int) -> None:
    """Latent attention's, of all heads at once: as of each alone."""
    weight = torch.randn((heads, 128, 512), generator=torch.Generator().manual_seed(4)).to(device, DTYPES[dtype])
    x = torch.randn((20, heads, 512), generator=torch.Generator().manual_seed(5)).to(device)
    got = floats(weight).by_head(x)
    for head in range(heads):
        assert same(got[:, head], floats(weight[head]).product(x[:, head], DTYPES[dtype]))
    assert same(floats(weight).by_head(x[7:8]), got[7:8])
