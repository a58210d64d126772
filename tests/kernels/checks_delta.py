"""What holds of the gated delta rule by kernels; the faults that are put in on purpose must break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.cache import RecurrentState
from mtptools.decoder.deltanet import DeltaNet, DeltaNetWeights
from mtptools.decoder.kernels import delta as kernels
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.ring import Ring
from tests.kernels.checks_rows import same

CPU: Final = torch.device("cpu")
EPS: Final = 1e-3
"""More than models have, so that it would be missed."""


@dataclass(frozen=True, slots=True)
class Shape:
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    kernel: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim

    @property
    def width(self) -> int:
        return self.channels + self.v_heads * self.v_dim + 2 * self.v_heads


SHAPES: Final = {
    "grouped": Shape(2, 4, 8, 8),
    "odd": Shape(1, 3, 5, 67, kernel=3),  # more than one program's columns, and no power of two
    "longer keys": Shape(2, 2, 24, 6, kernel=1),
}
REAL: Final = {
    "27B": Shape(16, 48, 128, 128),
    "35B-A3B": Shape(16, 32, 128, 128),
    "0.8B": Shape(16, 16, 128, 128),
}


class Text:
    """A layer, a text of some rows, and the state before it: noise, of values such as models have."""

    def __init__(self, shape: Shape, rows: int, device: torch.device = CPU) -> None:
        self.shape = shape
        noise = torch.Generator().manual_seed(shape.width + rows)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=noise).to(device)

        # Decays of e^-0.001 to e^-8 a token; heads from the one that forgets at once to the one that hardly does.
        speed = torch.logspace(-3, 1, shape.v_heads, device=device)
        empty = torch.empty(0, device=device)
        taps, dt, norm = normal(shape.kernel, shape.channels), normal(shape.v_heads), normal(shape.v_dim)
        for head in (0, shape.k_heads):  # a query and a key so short that what is added to their lengths counts
            taps[:, head * shape.k_dim : (head + 1) * shape.k_dim] *= 1e-3
        self.weights = DeltaNetWeights(empty, taps, -speed, dt, norm, empty)
        self.fused = 2 * normal(rows, shape.width)
        conv, memory = normal(shape.kernel - 1, shape.channels), normal(shape.v_heads, shape.k_dim, shape.v_dim)
        self.state = RecurrentState(conv, memory)

    def net(self, device: torch.device, dtype: torch.dtype) -> DeltaNet:
        s, w = self.shape, self.weights
        cast = [x.to(device, dtype) for x in (w.conv, w.decay, w.dt, w.norm)]
        weights = DeltaNetWeights(w.fused, *cast, w.out)
        return DeltaNet(weights, s.k_heads, s.v_heads, s.k_dim, s.v_dim, EPS, Arithmetic.on(device))

    def ring(self, slots: int, at: int) -> Ring:
        """All that nobody has written is NaN."""
        conv, memory = (x.new_full((slots, *x.shape), float("nan")) for x in (self.state.conv, self.state.memory))
        conv[at], memory[at] = self.state.conv, self.state.memory
        return Ring(conv, memory, torch.tensor([at], device=conv.device))

    def pass_of(self, ring: Ring, start: int, rows: int, kept: int) -> Tensor:
        """Rows start … of the text; [rows, v_heads * v_dim]. `at` stays where it is."""
        s = self.shape
        part = self.fused[start : start + rows]
        return kernels.delta(part, self.weights, s.k_heads, s.v_heads, s.k_dim, s.v_dim, EPS, ring, kept)

    def by_torch(self, dtype: torch.dtype) -> tuple[list[RecurrentState], Tensor]:
        """`DeltaNet.step` in float32 or float64, on the CPU: the state after each row, and what it gives."""
        net, fused = self.net(CPU, dtype), self.fused.to(CPU, dtype)
        state = RecurrentState(self.state.conv.to(CPU, dtype), self.state.memory.to(CPU, dtype))
        states, outs = [], []
        for row in range(len(fused)):
            state, out = net.step(state, fused[row : row + 1])
            states.append(state)
            outs.append(out)
        return states, torch.cat(outs)


def is_near(shape: Shape, rows: int, device: torch.device = CPU, near: float = 4e-6) -> None:
    """All rows at once, all states kept: conv's exactly, since it is moved and no more."""
    text = Text(shape, rows, device)
    slots = rows + 1
    ring = text.ring(slots, at=slots - 1)  # so that row r leaves its state in slot r
    got = text.pass_of(ring, 0, rows, rows).cpu()
    states, exact = text.by_torch(torch.float64)
    memories = torch.stack([state.memory for state in states])
    _close(got, exact, near)
    _close(ring.memory[:rows].cpu(), memories, near)
    assert same(ring.conv[:rows].cpu(), torch.stack([state.conv for state in states]).float())
    states, rounded = text.by_torch(torch.float32)
    _close(rounded, exact, near)  # torch's own is as far from the exact one: the bound is not a loose one
    _close(got, rounded, 2 * near)
    _close(ring.memory[:rows].cpu(), torch.stack([state.memory for state in states]), 2 * near)


def _close(got: Tensor, want: Tensor, near: float) -> None:
    """Relative to each row's largest value, at least 1: what cancels in a sum is as large as its terms."""
    size = want.abs().flatten(1).amax(1).clamp(min=1).view(-1, *[1] * (want.dim() - 1))
    off = ((got - want).abs() / size).max()
    assert off <= near, float(off)


def however_cut(shape: Shape, passes: Sequence[Sequence[int]], device: torch.device = CPU) -> None:
    """The same text in passes of so many rows: every state, and what rows give, have the same bits.

    passes  numbers of rows, each with the same sum; the rows in one pass are what they are compared with
    """
    rows = sum(passes[0])
    text = Text(shape, rows, device)
    whole = text.ring(rows + 1, at=rows)
    wanted = text.pass_of(whole, 0, rows, rows)
    for counts in passes:
        at, done = max(counts), 0
        ring = text.ring(at + 1, at)
        for count in counts:
            got = text.pass_of(ring, done, count, count)
            assert same(got, wanted[done : done + count]), f"rows {done} … of {counts}"
            for row in range(done, done + count):
                at = (at + 1) % len(ring.conv)
                assert same(ring.conv[at], whole.conv[row]), f"window after row {row} of {counts}"
                assert same(ring.memory[at], whole.memory[row]), f"memory after row {row} of {counts}"
            done += count
            ring.at.fill_(at)


def keeps_what_it_should(shape: Shape, rows: int, slots: int, device: torch.device = CPU) -> None:
    """From every slot, every number of kept states: they stand where they should, and no other slot has changed."""
    text = Text(shape, rows, device)
    whole = text.ring(rows + 1, at=rows)
    wanted = text.pass_of(whole, 0, rows, rows)
    for at in range(slots):
        for kept in range(min(rows, slots - 1) + 1):
            ring = text.ring(slots, at)
            assert same(text.pass_of(ring, 0, rows, kept), wanted)
            assert int(ring.at) == at
            expected = text.ring(slots, at)
            for number in range(kept):
                slot, row = (at + 1 + number) % slots, rows - kept + number
                expected.conv[slot], expected.memory[slot] = whole.conv[row], whole.memory[row]
            assert same(ring.conv, expected.conv), f"conv from slot {at}, {kept} kept"
            assert same(ring.memory, expected.memory), f"memory from slot {at}, {kept} kept"


def goes_back(shape: Shape, device: torch.device = CPU) -> None:
    """Drafts of three rows of which one stays, then two, then none: as the text without the others, in two slots more.

    What is rejected is other rows of the text, so it would be seen.
    """
    text = Text(shape, 12, device)
    accepted, slots, at = [0, 3, 4, 5, 6], 4, 1
    ring = text.ring(slots, at)
    got = []
    for start, stay in ((0, 1), (3, 2), (9, 0), (5, 2)):
        out = text.pass_of(ring, start, 3, 3)
        got.append(out[:stay])
        at = (at + stay) % slots
        ring.at.fill_(at)
    plain = text.ring(2, 0)
    for row, want in zip(accepted, torch.cat(got), strict=True):
        assert same(text.pass_of(plain, row, 1, 1)[0], want), f"row {row}"
        plain.at.copy_(1 - plain.at)
    now = int(plain.at)
    assert same(ring.conv[at], plain.conv[now])
    assert same(ring.memory[at], plain.memory[now])
