"""Rows' arithmetic on the device: near the exact, or exact, each row by itself, wherever it lies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mtptools.decoder.kernels import rows
from mtptools.decoder.settings import Routing
from tests.gpu.cases import on
from tests.gpu.rows import COUNTS, rows_by_themselves, same
from tests.kernels.checks_rows import (
    ROUTINGS,
    Rows,
    arithmetic,
    at_every_place,
    broken_logits_stay_in_range,
    gate_is_near,
    mix_is_exact,
    noise,
    norm_is_near,
    norm_of_a_sum_is_that,
    route_is_near,
    softplus_is_near,
    ties_go_to_the_lowest,
)

WIDTHS = (1, 31, 128, 256, 576, 2048, 4096, 5120, 7168, 12288, 16384)
REAL = {
    "35B-A3B": (256, Routing("softmax", 8), False, True),
    "Qwen3-Next": (512, Routing("softmax", 10), False, True),
    "GLM-4.5-Air": (128, Routing("sigmoid", 8), True, False),
    "DeepSeek-V3": (256, Routing("sigmoid", 8, 8, 4, scale=2.5), True, False),
    "DeepSeek-V4": (384, Routing("sqrtsoftplus", 6, scale=1.5), True, False),
    "many": (1024, Routing("softmax", 16, normalized=False), False, False),
    "all": (48, Routing("sigmoid", 48), False, True),
    **ROUTINGS,
}

EVERY = [(name, width) for name in arithmetic(8) for width in (70, 2048, 5120)]


@pytest.mark.parametrize(("device", "width", "groups"), on([(w, g) for w in WIDTHS for g in (None, 2, 24)], [(70, 2)]))
def test_norm(device: torch.device, width: int, groups: int | None) -> None:
    norm_is_near(width, groups, 9 if device.type == "cuda" else 2, device)


@pytest.mark.parametrize(("device", "width"), on(WIDTHS, [70]))
def test_norm_of_a_sum(device: torch.device, width: int) -> None:
    norm_of_a_sum_is_that(width, 3, device)


@pytest.mark.parametrize(("device", "half", "limit"), on([(h, c) for h in (1, 512, 17408) for c in (0, 7)], [(70, 2)]))
def test_gate(device: torch.device, half: int, limit: float) -> None:
    gate_is_near(half, limit, 9 if device.type == "cuda" else 2, device)


@pytest.mark.parametrize(("device", "name"), on(REAL, ["groups"]))
def test_route(device: torch.device, name: str) -> None:
    route_is_near(*REAL[name], 17 if device.type == "cuda" else 1, device)


@pytest.mark.parametrize("device", on([()], []))
def test_ties_and_edges(device: torch.device) -> None:
    """On the CPU they are tests of `tests/kernels`."""
    ties_go_to_the_lowest(device)
    softplus_is_near(device)
    broken_logits_stay_in_range(device)


@pytest.mark.parametrize(("device", "used", "hidden"), on([(1, 33), (8, 2048), (10, 7168)], [(3, 40)]))
def test_mix(device: torch.device, used: int, hidden: int) -> None:
    mix_is_exact(used, hidden, 9 if device.type == "cuda" else 2, device)


@pytest.mark.parametrize(("device", "name", "width"), on(EVERY, [("norm of groups", 20)]))
def test_rows_by_themselves(device: torch.device, name: str, width: int) -> None:
    wide, fn = arithmetic(width, device)[name]
    rows_by_themselves(fn, wide, device, COUNTS if device.type == "cuda" else (1, 3))
    at_every_place(wide, fn, 33 if device.type == "cuda" else 4, device)


@pytest.mark.parametrize(("device", "name", "width"), on(EVERY, [("gate", 20)]))
def test_again(device: torch.device, name: str, width: int) -> None:
    """The same launch gives the same bits: no order is left to chance."""
    wide, fn = arithmetic(width, device)[name]
    x = noise(33, wide, seed=3, device=device)
    first = fn(x)
    assert all(same(fn(x), first) for _ in range(20 if device.type == "cuda" else 1))


@pytest.mark.parametrize(("device", "distance"), on([2**30 + 17], [97]))
def test_rows_far_apart(device: torch.device, distance: int) -> None:
    """Addresses that 32 bits do not hold: three rows in 8 GB."""
    width = 64
    x, y = (noise(3, width, seed=seed, device=device) for seed in (1, 2))
    wide = torch.empty(2 * distance + width, device=device).as_strided((3, width), (distance, 1))
    wide.copy_(x)
    assert same(rows.norm(wide, y[0], 1e-6), rows.norm(x, y[0], 1e-6))
    assert same(rows.norm_sum(y, wide, y[0], 1e-6)[1], rows.norm_sum(y, x, y[0], 1e-6)[1])
    assert same(rows.gate(wide), rows.gate(x))
    routing = Routing("softmax", 4)
    for got, want in zip(rows.route(wide, routing, None, True), rows.route(x, routing, None, True), strict=True):
        assert torch.equal(got, want)


FAULTS: dict[str, Rows] = {
    "number of rows": lambda y: y * (1 + (len(y) > 1) * 2.0**-20),
    "position": lambda y: y * (1 + (torch.arange(len(y), device=y.device) % 16 == 3)[:, None] * 2.0**-20),
    "neighbours": lambda y: y + y[:1] * 2.0**-20 * (len(y) > 1),
}


@pytest.mark.parametrize(("device", "fault"), on(FAULTS, FAULTS))
def test_a_dependence_is_seen(device: torch.device, fault: str) -> None:
    width, fn = arithmetic(20, device)["gate"]

    def wrong(x: Tensor) -> Tensor:
        return FAULTS[fault](fn(x))

    with pytest.raises(AssertionError, match="row"):
        rows_by_themselves(wrong, width, device, counts=(1, 16))
