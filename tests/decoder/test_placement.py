"""Layers are split in contiguous ranges; no device gets more than it has, where anything fits."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtptools.decoder.placement import Placement, split

SIZES = st.integers(0, 40)


def devices(n: int) -> list[torch.device]:
    return [torch.device("cuda", number) for number in range(n)]


def loads(placed: Placement, layers: list[int], embed: int, output: int) -> list[int]:
    """Bytes on each device, counted layer by layer."""
    out = [0] * len(placed.devices)
    for layer, size in enumerate(layers):
        out[placed.layer_of[layer]] += size
    out[0] += embed
    out[-1] += output
    return out


def fullest(found: list[int], free: list[int]) -> float:
    return max(load / max(room, 1) for load, room in zip(found, free, strict=True))


@given(st.lists(SIZES, max_size=7), SIZES, SIZES, st.lists(st.integers(0, 120), min_size=1, max_size=4))
def test_the_best_of_all_splits(layers: list[int], embed: int, output: int, free: list[int]) -> None:
    """Against trying every split: contiguous, total, in order, and as balanced as can be."""
    placed = split(devices(len(free)), layers, embed, output, free)
    assert list(placed.layer_of) == sorted(placed.layer_of)
    assert len(placed.layer_of) == len(layers)
    assert [layer for some in placed.ranges for layer in some] == list(range(len(layers)))
    every = combinations_with_replacement(range(len(free)), len(layers))
    best = min(fullest(loads(Placement(placed.devices, tuple(one)), layers, embed, output), free) for one in every)
    assert fullest(loads(placed, layers, embed, output), free) == pytest.approx(best, rel=1e-9)


@given(
    st.lists(st.integers(1, 10**10), min_size=1, max_size=90), st.lists(st.integers(1, 10**11), min_size=1, max_size=8)
)
def test_what_fits_is_never_too_much(layers: list[int], free: list[int]) -> None:
    placed = split(devices(len(free)), layers, 0, 0, free)
    found = loads(placed, layers, 0, 0)
    if any(load > room for load, room in zip(found, free, strict=True)):  # then filling up in turn must fail as well
        at, left = 0, list(free)
        for size in layers:
            while at < len(free) and left[at] < size:
                at += 1
            if at == len(free):
                break
            left[at] -= size
        assert at == len(free)


def test_twice_the_room_takes_twice_the_layers() -> None:
    placed = split(devices(2), [10] * 30, 0, 0, [100, 200])
    assert placed.ranges == (range(10), range(10, 30))
    assert placed.device_of(9) == torch.device("cuda:0")
    assert placed.device_of(10) == torch.device("cuda:1")


def test_the_output_matrix_takes_the_place_of_layers() -> None:
    assert split(devices(2), [10] * 10, 0, 60, [80, 80]).ranges == (range(8), range(8, 10))
    assert split(devices(2), [10] * 10, 60, 0, [80, 80]).ranges == (range(2), range(2, 10))


def test_a_fit_to_the_byte() -> None:
    assert split(devices(2), [1_410_065_407, 1], 0, 0, [1_410_065_407, 1]).layer_of == (0, 1)


def test_one_device_has_all() -> None:
    assert split(devices(1), [5, 5], 1, 1, [1]).layer_of == (0, 0)
