"""Logits of one text by two arithmetics: how far they are apart, and whether every other choice is a near-tie.

A choice may differ where the two best logits are nearer than rounding moves them. How far that is, is measured where
both choose the same: the change of the difference of any two of the ten best logits. A difference whose margin
is above the 99.9 % quantile of that is no tie but a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["BOUNDS", "Apart", "apart"]

BOUNDS = {"float32": (3e-5, 2e-4), "bfloat16": (0.1, 2.0), "float16": (0.02, 0.5)}
"""dtype -> largest difference of a logit: at the median position, and at any. Logits of the fixtures reach 19.

Three to five times what two orders of sums on the CPU differ in (float32: 5e-6, 9e-6; bfloat16: 0.03, 0.44, where a
router chose another expert); float16 has eight times bfloat16's precision.
"""

BEST = 10
QUANTILE = 0.999


@dataclass(frozen=True)
class Apart:
    """largest  of every position's logits;  noise  the quantile;  flips  (position, one, other, margin of the first)"""

    largest: list[float]
    noise: float
    flips: list[tuple[int, int, int, float]]

    @property
    def ties(self) -> list[tuple[int, int, int, float]]:
        return [flip for flip in self.flips if flip[3] <= self.noise]

    @property
    def faults(self) -> list[tuple[int, int, int, float]]:
        return [flip for flip in self.flips if flip[3] > self.noise]

    def within(self, dtype: str) -> bool:
        middle, most = BOUNDS[dtype]
        ordered = sorted(self.largest)
        return ordered[len(ordered) // 2] <= middle and ordered[-1] <= most

    def __str__(self) -> str:
        ordered = sorted(self.largest)
        named = "; ".join(f"position {at}: {a} or {b}, margin {margin:.2g}" for at, a, b, margin in self.flips)
        return (
            f"{len(ordered)} positions, logits apart by {ordered[len(ordered) // 2]:.2g}, at most {ordered[-1]:.2g}; "
            f"noise {self.noise:.2g}; {len(self.flips)} other choices, {len(self.faults)} no ties; {named}"
        )


def apart(one: Tensor, other: Tensor) -> Apart:
    """Float32 logits [rows, vocab] of the same text."""
    a, b = one.cpu().double(), other.cpu().double()
    chosen = a.argmax(1), b.argmax(1)
    agree = chosen[0] == chosen[1]
    best = a.topk(BEST, dim=1).indices
    x, y = a.gather(1, best), b.gather(1, best)
    moved = ((x[:, :, None] - x[:, None]) - (y[:, :, None] - y[:, None])).abs()
    pairs = torch.triu_indices(BEST, BEST, 1)
    changes = moved[agree][:, pairs[0], pairs[1]].flatten().sort().values
    noise = float(changes[min(int(QUANTILE * len(changes)), len(changes) - 1)]) if len(changes) else 0.0
    margins = x[:, 0] - x[:, 1]
    flips = [
        (at, int(chosen[0][at]), int(chosen[1][at]), float(margins[at])) for at in (~agree).nonzero()[:, 0].tolist()
    ]
    return Apart((a - b).abs().amax(1).tolist(), noise, flips)
