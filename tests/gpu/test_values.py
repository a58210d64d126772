"""Values that the kernels decode on the device: bit for bit those of other implementations."""

from __future__ import annotations

import pytest
import torch

from mtptools.decoder.kernels import launch
from mtptools.decoder.kernels.layouts import KINDS
from tests.gpu.cases import on
from tests.kernels.checks import same_bits
from tests.kernels.samples import block_of, sample

HERE = ("Q4_K", "F8_BLOCK")


@pytest.mark.parametrize(("device", "kind"), on(KINDS, HERE))
def test_bits(device: torch.device, kind: str) -> None:
    """Extreme scales, subnormal ones, both zeros; rows that are not whole tiles; a view of some rows."""
    slab, want = sample(kind, 301, 3 * block_of(kind), tame=False)
    there = slab.to(device)
    assert same_bits(launch.values(there, torch.float32).cpu().numpy(), want)
    assert same_bits(launch.values(there.rows(3, 70), torch.float32).cpu().numpy(), want[3:70])


@pytest.mark.parametrize(("device", "kind"), on(KINDS, HERE))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_once(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    slab, want = sample(kind, 77, 3 * block_of(kind), tame=False)
    rounded = torch.from_numpy(want).to(dtype)
    got = launch.values(slab.to(device), dtype).cpu()
    assert ((got.view(torch.int16) == rounded.view(torch.int16)) | (got.isnan() & rounded.isnan())).all()


@pytest.mark.parametrize(("device", "kind", "k"), on([(kind, 5120) for kind in KINDS], [("Q8_0", 512)]))
def test_long_rows(device: torch.device, kind: str, k: int) -> None:
    slab, want = sample(kind, 65, k)
    assert same_bits(launch.values(slab.to(device), torch.float32).cpu().numpy(), want)
