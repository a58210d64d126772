"""Routed experts of a pass: all rows meet an expert at once, and which are met next is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.free import Free
from mtptools.decoder.moe import Mlp, MlpWeights, Moe
from mtptools.decoder.packed import matrix
from mtptools.decoder.runs import Runs
from mtptools.decoder.stream.coming import Experts

__all__ = ["Routed"]

ROWS: Final = 512
"""That an expert takes at a time."""


class Routed(Moe):
    """Experts that are decoded one by one, ahead of the products."""

    __slots__ = ()

    @property
    def adds(self) -> bool:
        """Are results added expert by expert, as free arithmetic may? Exact sums go by rank: all results are held."""
        return isinstance(self.arithmetic, Free)

    def route(self, logits: Tensor, ids: Sequence[int] = ()) -> Tensor:
        routed = super().route(logits, ids)
        stacks = [one for one in (self.weights.gate_up, self.weights.down) if isinstance(one, Experts)]
        met = sorted({int(one) for row in routed[:, : self.routing.used].tolist() for one in row})
        if stacks:
            stacks[0].helpers.expect([stack.tell(expert) for expert in met for stack in stacks])
        return routed

    def forward(self, x: Tensor, ids: Sequence[int] = ()) -> Tensor:
        """x [rows, hidden]; same shape back."""
        if not self.adds:
            return super().forward(x, ids)
        ops, weights, used = self.arithmetic, self.weights, self.routing.used
        routed = self.route(ops.linear(x, weights.router), ids)
        experts, shares = routed[:, :used].reshape(-1).int(), routed[:, used : 2 * used].reshape(-1, 1)
        order = experts.argsort(stable=True)
        mixed = torch.zeros_like(x)
        for expert, start, stop in Runs.of(experts[order].tolist(), x.device):
            one = self._mlp(MlpWeights(matrix(weights.gate_up, expert), matrix(weights.down, expert)))
            for at in range(start, stop, ROWS):
                places = order[at : min(at + ROWS, stop)]
                rows = places // used
                mixed.index_add_(0, rows, one.forward(x[rows]).mul_(shares[places]))
        if weights.shared is not None:
            shared = self._mlp(weights.shared)
            for at in range(0, x.shape[0], ROWS):
                part = shared.forward(x[at : at + ROWS])
                mixed[at : at + ROWS] += part * routed[at : at + ROWS, 2 * used :] if weights.switch else part
        return mixed

    def _mlp(self, weights: MlpWeights) -> Mlp:
        return Mlp(weights, self.arithmetic, self.routing.limit)
