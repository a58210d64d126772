"""Compressed keys of DeepSeek-V4: every window of tokens closes into one key, a gated mean of what its tokens gave.

Heavily compressed attention (HCA): windows of 128, one behind the other. Compressed sparse attention (CSA): windows
of 4, each token gives two series: one for the key of its own window, one for the key of the next.
Formulas: transformers 5.23, `DeepseekV4HCACompressor` and `DeepseekV4CSACompressor`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtptools.decoder.cache import KVCache
from mtptools.decoder.ops import Arithmetic, each_row
from mtptools.decoder.rope import Rope

__all__ = ["Compressor", "WindowCache", "turn"]


def turn(rope: Rope, x: Tensor, start: int, back: bool = False) -> Tensor:
    """x [rows, heads, head_dim] at consecutive positions: the last `rope.dim` values turn, or turn back."""
    cos, sin = rope.at(start, x.shape[0])
    return _turned(x, cos, -sin if back else sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs of neighbours among the last values turn; cos and sin [rows, 1, turned / 2]."""
    still = x.shape[-1] - 2 * cos.shape[-1]
    low, high = x[..., still::2], x[..., still + 1 :: 2]
    pairs = torch.stack((low * cos - high * sin, high * cos + low * sin), dim=-1).flatten(-2)
    return torch.cat((x[..., :still], pairs), dim=-1) if still else pairs


class WindowCache:
    """Compressed keys, and what tokens gave that a later window may still need.

    keys     one slot per closed window: chunks [1, 64, dim]
    pending  rows [1, 2 * width] of tokens first … length - 1
    """

    def __init__(self, ratio: int, behind: int, keys: KVCache) -> None:
        self.ratio, self.behind, self.keys = ratio, behind, keys
        self.pending: list[Tensor] = []
        self.length = 0
        self.base: int | None = None

    @property
    def first(self) -> int:
        return self.length - len(self.pending)

    def append(self, rows: Tensor) -> None:
        """rows [rows, 2 * width] of the tokens after the last one."""
        self.pending += each_row(rows)
        self.length += rows.shape[0]

    def window(self, number: int) -> list[Tensor]:
        """Rows of a window's tokens, after those of the `behind` windows before it that exist."""
        start = max(0, number - self.behind) * self.ratio
        return self.pending[start - self.first : (number + 1) * self.ratio - self.first]

    def forget(self) -> None:
        """Drop the rows of windows that are closed for good."""
        sure = self.length if self.base is None else min(self.base, self.length)
        keep = max(0, sure // self.ratio - self.behind) * self.ratio
        del self.pending[: max(0, keep - self.first)]

    def start(self, length: int) -> None:
        self.base = length

    def rollback(self, length: int) -> None:
        if length < self.length:
            del self.pending[length - self.length :]
        self.length = length
        self.base = None
        self.keys.rollback(length // self.ratio)


@dataclass(frozen=True, slots=True)
class Compressor:
    """ratio   tokens of a window
    overlap    a token gives a first half to the next window and a second half to its own
    bias       [ratio, width] float32, added to gates by place in the window; width is dim, or 2 dim with overlap
    norm       [dim] float32
    """

    ratio: int
    overlap: bool
    bias: Tensor
    norm: Tensor
    rope: Rope
    eps: float
    arithmetic: Arithmetic

    @property
    def width(self) -> int:
        return self.bias.shape[1]

    def new_cache(self, dtype: torch.dtype) -> WindowCache:
        dim = self.norm.shape[0]
        keys = KVCache(1, dim, 0, dtype, self.arithmetic.device, shared=dim)
        return WindowCache(self.ratio, int(self.overlap), keys)

    def visible(self, position: int) -> int:
        """Compressed keys that a query at `position` may see: of windows that end there or before."""
        return (position + 1) // self.ratio

    def read(self, rows: Tensor, cache: WindowCache) -> None:
        """Append rows [rows, 2 * width], values before gates, and close the windows that are whole."""
        cache.append(rows)
        first, last = cache.keys.length, cache.length // self.ratio
        if last > first:
            windows = torch.stack([self._padded(cache.window(number)) for number in range(first, last)])
            keys = self.arithmetic.rms_norm(self.arithmetic.rows(self._mean, windows), self.norm, self.eps)
            starts = [self.rope.at(number * self.ratio, 1) for number in range(first, last)]
            cos, sin = torch.cat(starts, dim=1)
            cache.keys.append(_turned(keys.unsqueeze(1), cos, sin))
        cache.forget()

    def _padded(self, rows: list[Tensor]) -> Tensor:
        """The rows of one window [(1 + overlap) * ratio, 2 * width]; before the first there are gates that are shut."""
        if self.overlap and len(rows) == self.ratio:
            shut = rows[0].new_zeros((self.ratio, 2 * self.width))
            shut[:, self.width :] = float("-inf")
            rows = [shut, *rows]
        return torch.cat(rows)

    def _mean(self, windows: Tensor) -> Tensor:
        """[n, (1 + overlap) * ratio, 2 * width] to [n, dim]."""
        values, gates = windows[..., : self.width], windows[..., self.width :]
        if self.overlap:
            values, gates = self._series(values), self._series(gates + self.bias.repeat(2, 1))
        else:
            gates = gates + self.bias
        return (values * torch.softmax(gates, dim=1)).sum(dim=1)

    def _series(self, both: Tensor) -> Tensor:
        """First halves of the window before, second halves of the window itself: [n, 2 * ratio, dim]."""
        half = self.width // 2
        return torch.cat((both[:, : self.ratio, :half], both[:, self.ratio :, half:]), dim=1)
