"""A matrix's values, bit for bit those of other implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mtptools.decoder.kernels import launch
from mtptools.decoder.kernels.apart import f8_slab
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.kernels.table import TILES
from tests.kernels.checks import same_bits, values_are_exact
from tests.kernels.samples import CPU, block_of, mlx_affine, sample


@pytest.mark.parametrize("kind", KINDS)
def test_bits(kind: str) -> None:
    block = TILES[kind].block_n
    values_are_exact(kind, block + 1, block_of(kind))
    values_are_exact(kind, 1, 3 * block_of(kind))
    values_are_exact(kind, block - 1, block_of(kind))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_mlx(bits: int, group: int, dtype: str) -> None:
    slab, want = mlx_affine(bits, group, dtype, 5, 256, np.random.default_rng(bits + group))
    assert same_bits(launch.values(slab, torch.float32).numpy(), want)


@pytest.mark.parametrize("kind", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("k", [1, 20, 63, 65])
def test_floats_of_any_length(kind: str, k: int) -> None:
    values_are_exact(kind, 3, k)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["F32", "Q4_K", "MXFP4"])
def test_rounded_once(kind: str, dtype: torch.dtype) -> None:
    slab, want = sample(kind, 7, 256, tame=False)
    rounded = torch.from_numpy(want).to(dtype)
    got = launch.values(slab, dtype)
    assert ((got.view(torch.int16) == rounded.view(torch.int16)) | (got.isnan() & rounded.isnan())).all()


def test_f8_nan() -> None:
    codes = np.array([[0x7F, 0xFF, 0x7E, 0xFE] * 8], np.uint8)
    got = launch.values(f8_slab(codes, np.ones((1, 1), np.float32), 32, CPU), torch.float32)
    assert got[0, :4].isnan().tolist() == [True, True, False, False]
    assert got[0, 2:4].tolist() == [448, -448]


@pytest.mark.parametrize("group", [32, 96, 128])
def test_f8_groups(group: int) -> None:
    """One scale for a row, for MX's 32 columns, and a last group that is not whole."""
    rng = np.random.default_rng(group)
    codes = rng.integers(0, 0x7F, (4, 160), np.uint8)
    scales = rng.uniform(0.1, 1, (4, -(-160 // group))).astype(np.float32)
    ones = launch.values(f8_slab(codes, np.ones_like(scales), group, CPU), torch.float32).numpy()
    want = ones * np.repeat(scales, group, axis=1)[:, :160]
    assert same_bits(launch.values(f8_slab(codes, scales, group, CPU), torch.float32).numpy(), want)


def test_rows_of_a_slab() -> None:
    slab, want = sample("Q6_K", 40, 256)
    assert same_bits(launch.values(slab.rows(3, 37), torch.float32).numpy(), want[3:37])
    ids = torch.tensor([39, 0, 7, 7])
    assert same_bits(launch.values(slab.picked(ids), torch.float32).numpy(), want[ids])
    assert launch.values(slab.rows(5, 5), torch.float32).shape == (0, 256)
