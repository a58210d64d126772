"""The gated delta rule by its kernels, interpreted: near the exact one, the same however rows are cut into passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mtptools.decoder.kernels import delta, programs_delta
from mtptools.decoder.ring import Ring
from tests.kernels.checks_delta import (
    SHAPES,
    Shape,
    Text,
    goes_back,
    however_cut,
    is_near,
    keeps_what_it_should,
    same,
)
from tests.kernels.test_faults import Mutant, mutant

__all__ = ["mutant"]

PASSES = {"grouped": [[1] * 7, [4, 3]], "odd": [[3], [1, 2]], "longer keys": [[3], [2, 1]]}
SMALL = Shape(1, 1, 4, 4, kernel=3)


@pytest.mark.parametrize("name", SHAPES)
def test_near(name: str) -> None:
    is_near(SHAPES[name], 5)


@pytest.mark.parametrize("name", SHAPES)
def test_however_rows_are_cut(name: str) -> None:
    however_cut(SHAPES[name], PASSES[name])


def test_more_rows_than_the_window_is_long() -> None:
    """And fewer: a window of three passes."""
    however_cut(replace(SMALL, kernel=5), [[6], [2, 1, 3]])


def test_kept_states() -> None:
    keeps_what_it_should(SMALL, rows=3, slots=3)
    keeps_what_it_should(SMALL, rows=1, slots=2)


def test_going_back() -> None:
    goes_back(SMALL)


def test_columns_of_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device: more programs for a head, which change no bit here, since numpy adds columns one by one."""
    text, outs = Text(SHAPES["odd"], 2), []
    for block in (64, 32):
        monkeypatch.setattr(delta, "BLOCK", block)
        ring = text.ring(3, 2)
        outs.append((text.pass_of(ring, 0, 2, 2), ring.memory[:2]))
    assert all(same(one, other) for one, other in zip(*outs, strict=True))


@pytest.mark.parametrize("x", [-90.0, -17.0, -1.0, -1e-3, 0.0, 3.0, 21.0, 1e5])
def test_what_is_kept_of_a_memory(x: float) -> None:
    """exp(-softplus(x)) in float64, as near to 1 as can be told from it: thousands of tokens multiply it."""
    text = Text(SMALL, 1)
    text.fused[:, -SMALL.v_heads :] = x
    text.fused[:, -2 * SMALL.v_heads : -SMALL.v_heads] = float("-inf")  # nothing is written
    text.weights.dt.zero_()
    for speed in (1.0, 0.01):
        text.weights.decay.fill_(-speed)
        ring = text.ring(2, 0)
        ring.memory[0] = 1
        text.pass_of(ring, 0, 1, 1)
        power = speed * (max(x, 0) + math.log1p(math.exp(-abs(x))))
        off = (ring.memory[1].double() - math.exp(-power)).abs().max()
        assert off <= 2.0**-23 * math.exp(-power) * (1 + power) + 1e-37


def test_what_is_not_finite_is_not_hidden() -> None:
    for column in (0, 4, 8, 12, 16, 17):  # of q, k, v, z, b, a
        text = Text(SMALL, 2)
        text.fused[0, column] = float("nan")
        ring = text.ring(3, 0)
        out = text.pass_of(ring, 0, 2, 2)
        assert out[0].isnan().any(), column


def test_rows_anywhere_in_memory() -> None:
    """Rows out of a wider array, at another address; `at` among other numbers. And no rows."""
    text = Text(SMALL, 3)
    wanted = text.pass_of(text.ring(4, 3), 0, 3, 3)
    wide = torch.zeros(3, SMALL.width + 1)
    wide[:, 1:] = text.fused
    text.fused = wide[:, 1:]
    ring = text.ring(4, 3)
    ring = Ring(ring.conv, ring.memory, torch.arange(5)[3:4])
    assert same(text.pass_of(ring, 0, 3, 3), wanted)
    before = ring.memory.clone()
    assert text.pass_of(ring, 0, 0, 0).shape == (0, SMALL.v_heads * SMALL.v_dim)
    assert same(ring.memory, before)


def test_refused() -> None:
    """What would be read or written where nothing of it is."""
    text, ring = Text(SMALL, 3), Text(SMALL, 3).ring(3, 0)
    for kept in (-1, 3, 4):
        with pytest.raises(ValueError, match="cannot be kept in a ring of 3 slots"):
            text.pass_of(ring, 0, 3, kept)
    with pytest.raises(ValueError, match="2 states of 1 rows"):
        text.pass_of(ring, 0, 1, 2)
    for wrong, said in (
        (Ring(ring.conv[:, 1:], ring.memory, ring.at), "the ring's conv"),
        (Ring(ring.conv, ring.memory[:2], ring.at), "the ring's memory"),
        (Ring(ring.conv, ring.memory.double(), ring.at), "the ring's memory is torch.float64"),
        (Ring(ring.conv, ring.memory.transpose(2, 3), ring.at), "in one piece"),
        (Ring(ring.conv, ring.memory, ring.at.int()), "the ring's at is torch.int32"),
    ):
        with pytest.raises(ValueError, match=said):
            text.pass_of(wrong, 0, 3, 2)
    whole = text.fused, text.weights
    for field in ("conv", "decay", "dt", "norm"):
        text.weights = replace(whole[1], **{field: getattr(whole[1], field)[..., 1:]})
        with pytest.raises(ValueError, match=f"{field} is"):
            text.pass_of(ring, 0, 3, 2)
    text.fused, text.weights = whole[0][:, 1:], whole[1]
    with pytest.raises(ValueError, match="fused is"):
        text.pass_of(ring, 0, 3, 2)


def near_all() -> None:
    is_near(SHAPES["grouped"], 2)


def cut() -> None:
    however_cut(SMALL, [[3], [1, 2]])


def kept() -> None:
    keeps_what_it_should(SMALL, rows=2, slots=3)


# None of them leaves the memory that is its own: numpy would not say so.
MUTANTS: list[tuple[str, str, Callable[[], None]]] = [
    ("slot = (start + 1 + number) % slots", "slot = (start + number) % slots", kept),  # off by one
    ("slot = (start + 1 + number) % slots", "slot = tl.minimum(start + 1 + number, slots - 1)", kept),  # no ring
    ("conv + (start + 1 + number) % slots", "conv + (start + 2 + number) % slots", kept),
    ("mask=has & (number >= 0)", "mask=has & (number >= -1)", kept),  # over the slot it starts from
    ("        if number >= 0:", "        if number > 0:", kept),  # the first kept state is not
    ("number = r - (rows - kept)", "number = r", kept),  # the first rows instead of the last
    ("memory + start * (v_heads * k_dim * v_dim)", "memory", kept),  # the first slot, whatever `at` is
    ("(start * (kernel - 1) + kernel - 1 + row)", "(kernel - 1 + row)", kept),
    ("(start * (kernel - 1) + kernel - 1 + row)", "(start * (kernel - 1) - 1 - row)", near_all),
    ("conv + (start * (kernel - 1) + kernel - 1 + row)", "fused + 0 * (start * (kernel - 1) + kernel - 1 + row)", cut),
    ("taps + tap * channels", "taps + (kernel - 1 - tap) * channels", near_all),
    ("key_head = head // (v_heads // k_heads)", "key_head = head % k_heads", near_all),
    ("tl.where(head < k_heads, scale, 1.0)", "scale", near_all),
    ("SUM) + l2_eps", "SUM)", near_all),
    ("v_dim * 1.0) + eps", "v_dim * 1.0)", near_all),
    ("state = state * tl.load(line + channels + v_heads + head)", "state = state * 1.0", near_all),
    ("        delta = (value - tl", "        delta = (value + tl", near_all),
    ("b + v_heads) + tl.load(dt + v_head)", "b + v_heads) + tl.load(dt)", near_all),
    ("softplus(tl.load(b + v_heads)", "(tl.load(b + v_heads)", near_all),
    (
        "channels + head * v_dim + i, mask=has, other=0.0)\n    x = over",
        "head * v_dim + i, mask=has)\n    x = over",
        near_all,
    ),
]


@pytest.mark.parametrize("check", [near_all, cut, kept])
def test_the_right_ones_pass(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(("old", "new", "check"), MUTANTS)
def test_a_wrong_program_is_seen(
    old: str, new: str, check: Callable[[], None], mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "programs", mutant(programs_delta, old, new))
    with pytest.raises(AssertionError):
        check()
