"""Hyper-connections of DeepSeek-V4: a residual of several streams, mixed anew before and after every part of a block.

A state is the streams one behind the other, [rows, streams * hidden] float32, so that it can be tapped and recycled
like any other. Formulas: transformers 5.23, `DeepseekV4HyperConnection`, `DeepseekV4HyperHead` and
`DeepseekV4DecoderLayer`.

Sums over streams are written out as additions: those, products and quotients are exact whatever the number of rows,
so only exponentials and means go through tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mtptools.decoder.cache import LayerCache
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight
from mtptools.decoder.settings_v4 import HyperSettings
from mtptools.decoder.trunk import Ffn, Mixer

__all__ = ["HyperBlock", "HyperConnection", "HyperHead", "Mixing"]


@dataclass(frozen=True, slots=True)
class Mixing:
    """What a connection does with a part's result: out [rows, n] spreads it, kept [rows, n, n] (from, to) streams."""

    out: Tensor
    kept: Tensor


def _added(parts: Sequence[Tensor]) -> Tensor:
    """At least two parts, added in order."""
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def _projected(ops: Arithmetic, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) times weight [N, width] float32: [rows, N]. The scale is taken out of the product."""

    def inverse(part: Tensor) -> Tensor:
        return part.square().mean(-1, keepdim=True).add_(eps).rsqrt_()

    return ops.linear(x, weight) * ops.rows(inverse, x)


def _collapsed(x: Tensor, shares: Tensor) -> Tensor:
    """Streams [rows, n * hidden] weighted by shares [rows, n] and added: [rows, hidden]."""
    streams = x.view(x.shape[0], shares.shape[1], -1)
    return _added((streams * shares.unsqueeze(-1)).unbind(1))


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """One connection, around an attention or a feed-forward part of a block.

    weight [(2 + n) * n, n * hidden], base and scale [(2 + n) * n], all float32. Of the rows n collapse the streams,
    n spread the result, n * n mix streams. The source keeps one scale for each of the three kinds.
    """

    weight: Tensor
    base: Tensor
    scale: Tensor
    settings: HyperSettings
    arithmetic: Arithmetic

    def enter(self, x: Tensor) -> tuple[Tensor, Mixing]:
        """Streams [rows, n * hidden] to the part's input [rows, hidden], and what `leave` needs."""
        n, eps, ops = self.settings.streams, self.settings.eps, self.arithmetic
        scores = _projected(ops, x, self.weight, self.settings.norm_eps) * self.scale + self.base

        def open_(part: Tensor) -> Tensor:
            gates = torch.sigmoid(part[:, : 2 * n])
            mixed = torch.softmax(part[:, 2 * n :].view(-1, n, n), -1)
            return torch.cat((gates, mixed.flatten(1)), dim=1)

        opened = ops.rows(open_, scores)
        kept = self._balanced(opened[:, 2 * n :].reshape(-1, n, n) + eps)
        return _collapsed(x, opened[:, :n] + eps), Mixing(opened[:, n : 2 * n] * 2, kept)

    def _balanced(self, mixed: Tensor) -> Tensor:
        """[rows, n, n], overwritten: divided by its sums over "from", then in turns "to" and "from"."""
        eps = self.settings.eps
        mixed /= _added(mixed.unbind(1)).add_(eps).unsqueeze(1)
        for _ in range(self.settings.rounds - 1):
            mixed /= _added(mixed.unbind(2)).add_(eps).unsqueeze(2)
            mixed /= _added(mixed.unbind(1)).add_(eps).unsqueeze(1)
        return mixed

    def leave(self, x: Tensor, out: Tensor, mixing: Mixing) -> Tensor:
        """Streams x after a part whose result is out [rows, hidden]; the shape of x."""
        n = self.settings.streams
        streams = x.view(x.shape[0], n, -1)
        total = mixing.out.unsqueeze(-1) * out.unsqueeze(1)
        for source in range(n):
            total += mixing.kept[:, source].unsqueeze(-1) * streams[:, source : source + 1]
        return total.flatten(1)


@dataclass(frozen=True, slots=True)
class HyperHead:
    """Streams to one state, before a final norm. weight [n, n * hidden], base [n], scale [1], all float32."""

    weight: Tensor
    base: Tensor
    scale: Tensor
    settings: HyperSettings
    arithmetic: Arithmetic

    def collapse(self, x: Tensor) -> Tensor:
        """[rows, n * hidden] to [rows, hidden]."""
        ops = self.arithmetic
        scores = _projected(ops, x, self.weight, self.settings.norm_eps) * self.scale + self.base
        return _collapsed(x, ops.rows(torch.sigmoid, scores) + self.settings.eps)


@dataclass(frozen=True, slots=True)
class HyperBlock:
    """One decoder layer on streams. The norms are float32 [hidden], the factors themselves.

    around_mixer, around_ffn  how the streams go into each part and take up its result
    """

    mixer: Mixer
    ffn: Ffn
    mixer_norm: Tensor
    ffn_norm: Tensor
    around_mixer: HyperConnection
    around_ffn: HyperConnection
    eps: float
    arithmetic: Arithmetic

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield from self.mixer.matrices()
        yield from self.ffn.matrices()
        yield "streams", self.around_mixer.weight

    def new_cache(self) -> LayerCache:
        return self.mixer.new_cache()

    def shifted(self, by: float) -> HyperBlock:
        """With `by` added to the factors of its norms."""
        shifted = getattr(self.mixer, "shifted", None)
        mixer = self.mixer if shifted is None else shifted(by)
        return replace(self, mixer=mixer, mixer_norm=self.mixer_norm + by, ffn_norm=self.ffn_norm + by)

    def forward(self, x: Tensor, cache: Any, position: int, ids: Sequence[int]) -> Tensor:
        """Streams x [rows, n * hidden] of tokens `ids` at consecutive positions; same shape back."""
        return self.feed(self.mix(x, cache, position), ids)

    def mix(self, x: Tensor, cache: Any, position: int) -> Tensor:
        inner, mixing = self.around_mixer.enter(x)
        normed = self.arithmetic.rms_norm(inner, self.mixer_norm, self.eps)
        return self.around_mixer.leave(x, self.mixer.forward(normed, cache, position), mixing)

    def feed(self, x: Tensor, ids: Sequence[int]) -> Tensor:
        inner, mixing = self.around_ffn.enter(x)
        normed = self.arithmetic.rms_norm(inner, self.ffn_norm, self.eps)
        return self.around_ffn.leave(x, self.ffn.forward(normed, ids), mixing)
