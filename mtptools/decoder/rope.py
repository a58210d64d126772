"""Rotary positions: pairs of values of a head turned by an angle that grows with the position.

Formulas: transformers 5.23, `modeling_rope_utils` (plain, linear, yarn) and `apply_rotary_pos_emb` (halves),
`apply_rotary_pos_emb_interleave` (adjacent).
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK
from mtptools.decoder.settings import RopeSettings, Yarn

__all__ = ["Rope"]


class Rope:
    """cos and sin of position * frequency, float32 [positions, dim/2].

    Made in blocks of 64 positions: the vector library's cosine may differ in the last bit between an array's
    body and its tail, and a table that grows would change.
    """

    def __init__(self, settings: RopeSettings, device: torch.device) -> None:
        self.settings = settings
        self.dim = settings.dim
        self.device = device
        self.frequencies = frequencies(settings)
        self.table = torch.empty((2, 0, self.dim // 2), dtype=torch.float32, device=device)

    def at(self, start: int, n: int) -> Tensor:
        """[2, n, 1, dim/2] for positions start … start + n - 1: cos, sin."""
        return self.until(start + n)[:, start : start + n].unsqueeze(2)

    def until(self, stop: int) -> Tensor:
        """[2, stop or more, dim/2]: cos and sin of positions from 0 on."""
        first = self.table.shape[1]
        if first < stop:
            blocks = [self.table]
            for start in range(first, stop, CHUNK):
                angles = torch.outer(torch.arange(start, start + CHUNK, dtype=torch.float32), self.frequencies)
                blocks.append((torch.stack((angles.cos(), angles.sin())) * self.settings.magnitude).to(self.device))
            self.table = torch.cat(blocks, dim=1)
        return self.table

    def rotate(self, x: Tensor, start: int, slots: Tensor | None = None, until: int = 0) -> Tensor:
        """x [rows, heads, head_dim] at consecutive positions; the first `dim` values turn.

        slots  int64 [rows] below `until`: then the positions are these and `start` more, which only the device knows
        """
        if slots is None:
            cos, sin = self.at(start, x.shape[0])
        else:
            cos, sin = self.until(until + start)[:, slots + start].unsqueeze(2)
        if self.settings.pairs == "adjacent":
            low, high = x[..., 0 : self.dim : 2], x[..., 1 : self.dim : 2]
            turned = torch.stack((low * cos - high * sin, high * cos + low * sin), dim=-1).flatten(-2)
            return torch.cat((turned, x[..., self.dim :]), dim=-1) if self.dim < x.shape[-1] else turned
        half = self.dim // 2
        low, high = x[..., :half], x[..., half : self.dim]
        halves = (low * cos - high * sin, high * cos + low * sin)
        return torch.cat((*halves, x[..., self.dim :]) if self.dim < x.shape[-1] else halves, dim=-1)


def frequencies(settings: RopeSettings) -> Tensor:
    """Radians per position, float32 [dim/2]."""
    steps = torch.arange(0, settings.dim, 2, dtype=torch.float32) / settings.dim
    plain = 1.0 / torch.pow(torch.tensor(settings.theta, dtype=torch.float32), steps)
    if settings.yarn is None:
        return plain if settings.divide == 1 else plain / settings.divide
    ramp = _ramp(settings.yarn, settings.theta, settings.dim)
    return plain / settings.yarn.factor * ramp + plain * (1 - ramp)


def _ramp(yarn: Yarn, theta: float, dim: int) -> Tensor:
    """[dim/2] from 0 (turns fast: left as it is) to 1 (turns slowly: scaled)."""

    def index(turns: float) -> float:
        """Of the pair that makes so many turns over the original context."""
        return dim * log(yarn.original / (turns * 2 * pi)) / (2 * log(theta))

    low, high = max(floor(index(yarn.fast)), 0), min(ceil(index(yarn.slow)), dim - 1)
    width = high - low if high != low else 0.001
    return ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
