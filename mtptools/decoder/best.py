"""The best tokens of many rows, a part of the vocabulary at a time: the output matrix is decoded once for all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder.ops import BLOCK, HEAD_CHUNK, TILE, Arithmetic
from mtptools.decoder.packed import Weight

__all__ = ["Best", "best"]

ROWS: Final = 256
"""Rows of logits held at a time, each of a part of the vocabulary."""

LOGIT_BYTES: Final = 36
"""That a logit takes while it is looked at: once in float32, and what is made of it in float64."""


@dataclass(frozen=True, slots=True)
class Best:
    """Of each row of logits [rows, vocab]; all fields [rows].

    first, second  int64: the best token (of equals the lowest) and the runner-up
    top, margin    float32: the best logit, and how much less the runner-up has
    spread         float64: log of the sum of exponentials
    wanted         float32: the logit of a given token, NaN where none was given
    divergence     float64: Kullback-Leibler divergence of the other's distribution from this one, NaN without one
    """

    first: Tensor
    second: Tensor
    top: Tensor
    margin: Tensor
    spread: Tensor
    wanted: Tensor
    divergence: Tensor

    @property
    def log_likelihood(self) -> Tensor:
        """Natural log of the probability of the given token, float64 [rows]."""
        return self.wanted.double() - self.spread

    def part(self, start: int, stop: int) -> Best:
        """Some of the rows."""
        return Best(*(getattr(self, name)[start:stop] for name in Best.__slots__))


class _Running:
    """What is known of some rows after a part of the vocabulary; behind the first `judged` ones only the two best."""

    def __init__(self, rows: int, judged: int, device: torch.device) -> None:
        def full(value: float, dtype: torch.dtype = torch.float32, *shape: int) -> Tensor:
            return torch.full(shape or (judged,), value, dtype=dtype, device=device)

        self.judged = judged
        self.value = full(float("-inf"), torch.float32, rows, 2)  # of the first and the second
        self.token = full(-1, torch.int64, rows, 2)
        self.peak, self.peak_other = full(float("-inf"), torch.float64), full(float("-inf"), torch.float64)
        self.total, self.total_other = full(0, torch.float64), full(0, torch.float64)
        self.gap = full(0, torch.float64)  # sum of exp(a - peak) * (a - b)
        self.wanted = full(float("nan"))

    def add(self, logits: Tensor, start: int, wanted: Tensor | None, other: Tensor | None) -> None:
        """logits [rows, n] of tokens start, start + 1 …"""
        top = logits.amax(1)
        self._take(logits, start, top)
        if not self.judged:
            return
        logits, old = logits[: self.judged], self.peak
        if wanted is not None:
            at = wanted - start
            inside = (at >= 0) & (at < logits.shape[1])
            got = logits.gather(1, at.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
            self.wanted = torch.where(inside, got, self.wanted)
        self.peak = torch.maximum(old, top[: self.judged].double())
        shares = logits.double().sub_(self.peak[:, None]).exp_()
        decay = (old - self.peak).exp_()
        self.total = self.total * decay + shares.sum(1)
        if other is not None:
            before, twin = self.peak_other, other[: self.judged].double()
            self.peak_other = torch.maximum(before, twin.amax(1))
            self.total_other *= (before - self.peak_other).exp_()
            self.total_other += (twin - self.peak_other[:, None]).exp_().sum(1)
            self.gap = self.gap * decay + shares.mul_(logits.double() - twin).sum(1)

    def _take(self, logits: Tensor, start: int, top: Tensor) -> None:
        """The two best of this part, behind the two best so far: of equals the lower token stays in front.

        Most parts have none that is better than the second one so far: those rows are left alone.
        """
        rows = (~(top <= self.value[:, 1])).nonzero()[:, 0]
        if not len(rows):
            return
        logits, n = logits[rows], min(2, logits.shape[1])
        rest = logits.clone()
        found = []
        for _ in range(n):
            at = rest.argmax(1, keepdim=True)
            found.append(at)
            rest.scatter_(1, at, float("-inf"))
        tokens = torch.cat(found, dim=1)
        values = torch.cat((self.value[rows], logits.gather(1, tokens)), dim=1)
        order = values.argsort(dim=1, descending=True, stable=True)[:, :2]
        self.value[rows] = values.gather(1, order)
        self.token[rows] = torch.cat((self.token[rows], tokens + start), dim=1).gather(1, order)

    def best(self, compared: bool) -> Best:
        spread = self.peak + self.total.log()
        twin = self.peak_other + self.total_other.log()
        divergence = self.gap / self.total - spread + twin if compared else torch.full_like(spread, float("nan"))
        judged = (
            functional.pad(one, (0, len(self.value) - self.judged), value=float("nan"))
            for one in (spread, self.wanted, divergence)
        )
        return Best(self.token[:, 0], self.token[:, 1], self.value[:, 0], self.value[:, 0] - self.value[:, 1], *judged)


def best(
    ops: Arithmetic,
    states: Tensor,
    output: Weight,
    wanted: Sequence[int] | None = None,
    other: tuple[Tensor, Weight] | None = None,
) -> Best:
    """Of states [rows, hidden] times output [vocab, hidden], in float32.

    wanted  a token of each of the first rows; of rows behind them the two best are found, and nothing else (NaN)
    other   states and output of another model with the same vocabulary, to compare with
    """
    rows, width = states.shape
    parts = [slice(at, min(at + ROWS, rows)) for at in range(0, max(rows, 1), ROWS)]
    judged = rows if wanted is None else len(wanted)
    running = [
        _Running(part.stop - part.start, max(min(judged, part.stop) - part.start, 0), states.device) for part in parts
    ]
    tokens = None if wanted is None else torch.tensor(wanted, dtype=torch.int64, device=states.device)
    step = vocabulary_step(ops, width)
    for start in range(0, output.shape[0], step):
        chunk = ops.ready(_rows(output, start, step))
        twin = None if other is None else ops.ready(_rows(other[1], start, step))
        for part, known in zip(parts, running, strict=True):
            if part.start == part.stop:
                continue
            compared = None if other is None or twin is None else ops.logits(other[0][part], twin)
            known.add(ops.logits(states[part], chunk), start, None if tokens is None else tokens[part], compared)
    found = [known.best(other is not None) for known in running]
    if len(found) == 1:
        return found[0]
    return Best(*(torch.cat([getattr(one, name) for one in found]) for name in Best.__slots__))


def _rows(output: Weight, start: int, n: int) -> Weight:
    """n rows of an output matrix, as it is held."""
    stop = min(start + n, output.shape[0])
    return output[start:stop] if isinstance(output, Tensor) else output.picked([(start, stop)])


def vocabulary_step(ops: Arithmetic, width: int) -> int:
    """Rows of the output matrix at a time: on the CPU those that `Arithmetic.logits` takes, for the same bits."""
    return max(BLOCK // width // TILE * TILE, TILE) if ops.device.type == "cpu" else HEAD_CHUNK
