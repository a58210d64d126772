"""Copies beside the computing, on real streams: a layer finds its own values, however late the computing is."""

from __future__ import annotations

import pytest
import torch

from mtptools.decoder.ahead import Belt
from mtptools.decoder.lane import lane_of
from mtptools.decoder.offload import offloaded
from tests.gpu.cases import on

SIZES = (1 << 16, 1 << 25)
"""Values of a matrix: here, and on a GPU, where copies take milliseconds."""


@pytest.mark.parametrize(("device", "size"), on([SIZES[1]], [SIZES[0]]))
@pytest.mark.parametrize("n", [2, 4, 5])
@pytest.mark.parametrize("busy", ["copies", "computing"])
def test_layers_on_a_belt(device: torch.device, size: int, n: int, busy: str) -> None:
    """Every value of a layer is its number, and is looked at before and after work that takes its time."""
    layers = [[offloaded(torch.full((size,), number, dtype=torch.int32), device)] for number in range(n)]
    belt, order = Belt(layers, lane_of(device)), [*range(n)] * 4
    x, found = torch.ones((1 << 12 if device.type == "cuda" else 8,) * 2, device=device), []
    for number in order:
        with belt.at_work(number):
            here = layers[number][0].here()
            assert isinstance(here, torch.Tensor)
            found.append(torch.stack((here.min(), here.max())))
            for _ in range(20 if busy == "computing" else 0):
                x = (x @ x).clamp_(max=1)
            found.append(torch.stack((here.min(), here.max())))
    assert torch.stack(found).tolist() == [[number] * 2 for number in order for _ in range(2)]
