"""The gated delta rule on the device: near the exact one, the same however rows are cut, and able to go back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mtptools.decoder.kernels import delta
from mtptools.decoder.ring import Ring
from tests.gpu.cases import on
from tests.kernels.checks_delta import (
    REAL,
    Shape,
    Text,
    goes_back,
    however_cut,
    is_near,
    keeps_what_it_should,
    same,
)

SHAPES = {
    **REAL,
    "odd": Shape(3, 6, 40, 24, kernel=3),
    "small": Shape(1, 2, 4, 4),
}


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_near(device: torch.device, name: str) -> None:
    is_near(SHAPES[name], 16 if device.type == "cuda" else 3, device)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_however_rows_are_cut(device: torch.device, name: str) -> None:
    """One by one, as drafts, in tiles, and as a prompt comes: 256 at a time."""
    passes = [[1] * 3, [2, 1]]
    if device.type == "cuda":
        passes = [[1] * 7, [4, 3], [1, 5, 1], [6, 1]]
    however_cut(SHAPES[name], passes, device)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_a_long_text(device: torch.device, name: str) -> None:
    """Passes of a prompt's size keep the last state alone; one by one every other slot is the next."""
    counts = [256, 256, 33, 16, 1] if device.type == "cuda" else [5, 1]
    text = Text(SHAPES[name], sum(counts), device)
    ends = []
    for passes in (counts, [1] * sum(counts)):
        ring, at, done, got = text.ring(2, 0), 0, 0, []
        for count in passes:
            got.append(text.pass_of(ring, done, count, 1))
            at, done = 1 - at, done + count
            ring.at.fill_(at)
        ends.append((torch.cat(got), ring.conv[at], ring.memory[at]))
    for one, other in zip(*ends, strict=True):
        assert same(one, other)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_kept_states(device: torch.device, name: str) -> None:
    rows, slots = (5, 4) if device.type == "cuda" else (2, 2)
    keeps_what_it_should(SHAPES[name], rows, slots, device)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_going_back(device: torch.device, name: str) -> None:
    goes_back(SHAPES[name], device)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_again(device: torch.device, name: str) -> None:
    """The same pass gives the same bits: no order is left to chance."""
    rows = 64 if device.type == "cuda" else 2
    text = Text(SHAPES[name], rows, device)
    first = text.ring(2, 1)
    wanted = text.pass_of(first, 0, rows, 1)
    for _ in range(20 if device.type == "cuda" else 1):
        ring = text.ring(2, 1)
        assert same(text.pass_of(ring, 0, rows, 1), wanted)
        assert same(ring.memory, first.memory)


FAULTS: dict[str, Callable[[Tensor, Ring, int], None]] = {
    "a bit by the number of rows": lambda out, ring, rows: ring.memory.mul_(1 + (rows > 1) * 2.0**-22),
    "another slot": lambda out, ring, rows: ring.memory.copy_(ring.memory.roll(rows - 1, 0)),
    "what is read": lambda out, ring, rows: out.mul_(1 + (rows == 2) * 2.0**-22),
}


@pytest.mark.parametrize(("device", "fault"), on(FAULTS, ["another slot"]))
def test_a_dependence_is_seen(device: torch.device, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = delta.delta

    def wrong(fused: Tensor, *arguments: object) -> Tensor:
        out: Tensor = honest(fused, *arguments)  # type: ignore[arg-type]
        ring = arguments[-2]
        assert isinstance(ring, Ring)
        FAULTS[fault](out, ring, len(fused))
        return out

    monkeypatch.setattr(delta, "delta", wrong)
    with pytest.raises(AssertionError, match="of \\[2, 1\\]"):
        however_cut(replace(SHAPES["small"], kernel=2), [[2, 1]], device)
