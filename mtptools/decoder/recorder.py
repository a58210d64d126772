"""What matrices are multiplied with: squared inputs, added up by column, for the importance matrix.

`Recording` is the decoder's arithmetic with an ear: every product is that of `Arithmetic`, to the bit, and a model that
is loaded without a recorder never meets it. Sums are float64, so that the order of rows does not matter in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight, at_once
from mtptools.decoder.parts import Scope
from mtptools.decoder.runs import Runs
from mtptools.importance import Entry

__all__ = ["SCOPES", "Recorder", "Recording"]

SCOPES: Final = ("head", "all")

_POOLED: Final = ".attn_output_a.weight"
"""DeepSeek-V4's output by group: one matrix a group in the product, one under the other in the file. A quantizer takes
one row of weights for all of them."""


class Tally:
    """Sums of one weight: float64 [n, columns], and rows that came [n]; n counts experts, or heads."""

    def __init__(self, n: int, columns: int, device: torch.device) -> None:
        self.sums = torch.zeros((n, columns), dtype=torch.float64, device=device)
        self.rows = np.zeros(n, dtype=np.int64)

    def add(self, x: Tensor, at: int) -> None:
        """x [rows, columns] of matrix `at`."""
        self.sums[at] += x.double().square_().sum(0)
        self.rows[at] += x.shape[0]


@dataclass(frozen=True, slots=True)
class _Watched:
    """The weight is kept so that its id stays its own. `by_head`: every row passes all matrices of the stack."""

    weight: Weight | None
    names: tuple[str, ...]
    order: NDArray[np.int64] | None
    tally: Tally
    by_head: bool = False


class Recorder:
    """scope    "head", or "all" for the trunk's layers too
    on       products are heard only while it is set: not during the self-test
    outputs  per MTP layer, what its output matrix is called in a GGUF, whether it has one of its own or not
    embeds   what its embedding is called; none where it is the trunk's
    """

    def __init__(self, scope: str = "head") -> None:
        self.scope, self.on = scope, False
        self.outputs: list[tuple[str, ...]] = []
        self.embeds: list[tuple[str, ...]] = []
        self._watched: dict[int, _Watched] = {}
        self._around: dict[tuple[str, ...], _Watched] = {}

    def watch(self, weight: Weight, scope: Scope, names: Sequence[str], order: NDArray[np.int64] | None) -> None:
        """Add up the inputs of a matrix [N, K] or stack [n, N, K] under these names.

        order  per column of the GGUF's tensor, the column of the weight; None: the same
        """
        if scope[0] == "layer" and self.scope != "all":
            return
        n = weight.shape[0] if len(weight.shape) == 3 else 1
        tally = Tally(n, weight.shape[-1], weight.device)
        by_head = n > 1 and not any("_exps." in name for name in names)
        self._watched[id(weight)] = _Watched(weight, tuple(dict.fromkeys(names)), order, tally, by_head)

    def hear(self, x: Tensor, weight: Weight, index: int | None = None) -> None:
        """x [rows, K] meets a matrix, or the one of that index in a stack."""
        if self.on and (found := self._watched.get(id(weight))) is not None:
            found.tally.add(x, index or 0)

    def hear_heads(self, x: Tensor, weight: Tensor) -> None:
        """x [rows, heads, K] meets a stack [heads, N, K]."""
        if self.on and (found := self._watched.get(id(weight))) is not None:
            for head in range(x.shape[1]):
                found.tally.add(x[:, head], head)

    def hear_around(self, layer: int, x: Tensor) -> None:
        """x [rows, hidden] are the states that MTP layer `layer` would multiply with its output matrix.

        Embeddings are looked up, not multiplied: every column counts once a row.
        """
        for names, inputs in ((self.outputs[layer], x), (self.embeds[layer], torch.ones_like(x))):
            if names not in self._around:
                self._around[names] = _Watched(None, names, None, Tally(1, x.shape[1], x.device))
            self._around[names].tally.add(inputs, 0)

    def entries(self) -> dict[str, Entry]:
        """By GGUF name, with the GGUF's columns; of weights that go by one name (a shared fusion) as one.

        Weights that met nothing (an indexer, of short texts) have none.
        """
        sums: dict[str, NDArray[np.float64]] = {}
        rows: dict[str, NDArray[np.int64]] = {}
        for watched in (*self._watched.values(), *self._around.values()):
            for name in watched.names:
                found, counts = _laid_out(watched, name)
                sums[name] = sums[name] + found if name in sums else found
                rows[name] = rows[name] + counts if name in rows else counts
        return {name: Entry(sums[name].astype(np.float32), rows[name]) for name in sums if rows[name].any()}


def _laid_out(watched: _Watched, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sums [n, columns] and counts [n] as an importance matrix has them."""
    found, rows = watched.tally.sums.cpu().numpy(), watched.tally.rows
    if watched.order is not None:
        found = found[:, watched.order]
    if name.endswith(_POOLED):
        return found.sum(0, keepdims=True), rows.sum(keepdims=True)
    return (found.reshape(1, -1), rows[:1]) if watched.by_head else (found, rows)


@dataclass(frozen=True)
class Recording(Arithmetic):
    """Arithmetic that tells a recorder what it multiplies."""

    recorder: Recorder = field(default_factory=Recorder, compare=False)

    @classmethod
    def on(cls, device: torch.device, recorder: Recorder | None = None) -> Recording:
        plain = Arithmetic.on(device)
        return cls(plain.device, plain.tile, plain.wide_tile, plain.kernels, recorder or Recorder())

    def linear(self, x: Tensor, weight: Weight, index: int | None = None) -> Tensor:
        self.recorder.hear(x, weight, index)
        return super().linear(x, weight, index)

    def grouped(self, x: Tensor, stack: Weight, runs: Runs) -> Tensor:
        if not at_once(stack):
            return super().grouped(x, stack, runs)  # which is `linear`, run by run
        for expert, start, stop in runs:
            self.recorder.hear(x[start:stop], stack, expert)
        return super().grouped(x, stack, runs)

    def each(self, x: Tensor, stack: Weight, experts: Tensor) -> None:
        """By `grouped`, which hears which rows an expert meets."""

    def per_head(self, x: Tensor, weight: Tensor) -> Tensor:
        self.recorder.hear_heads(x, weight)
        return super().per_head(x, weight)
