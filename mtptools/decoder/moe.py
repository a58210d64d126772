"""Feed-forward parts: the dense gated MLP, and routed experts with a shared one.

Formulas: transformers 5.23, `Qwen3_5MLP`, `Qwen3_5MoeSparseMoeBlock` (the shared expert behind a sigmoid switch),
`DeepseekV3MoE` (the shared expert as it is).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtptools.decoder.ops import Arithmetic, each_row
from mtptools.decoder.packed import Weight
from mtptools.decoder.routing import choose_experts, scores, weigh_experts
from mtptools.decoder.settings import Routing

__all__ = ["Mlp", "MlpWeights", "Moe", "MoeWeights"]


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """gate_up [2F, hidden]: gate rows, then up rows; down [hidden, F]."""

    gate_up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """One layer's weights.

    router   [n_experts (+ 1), hidden] float32; with `switch` its last row is the shared expert's switch
    gate_up  [n_experts, 2F, hidden];   down  [n_experts, hidden, F]
    bias     [n_experts] float32, added to scores where experts are chosen, or None
    table    [vocab, used] int64: the experts of each token, where they are not chosen by score; or None
    """

    router: Tensor
    gate_up: Weight
    down: Weight
    shared: MlpWeights | None
    switch: bool = False
    bias: Tensor | None = None
    table: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Mlp:
    """limit: see `Routing`."""

    weights: MlpWeights
    arithmetic: Arithmetic
    limit: float = 0.0

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "gate and up", self.weights.gate_up
        yield "down", self.weights.down

    def forward(self, x: Tensor, ids: Sequence[int] = ()) -> Tensor:
        """x [rows, hidden]; same shape back."""
        return _gated(self.arithmetic, x, self.weights.gate_up, self.weights.down, self.limit)


def _gated(
    ops: Arithmetic, x: Tensor, gate_up: Weight, down: Weight, limit: float, expert: int | None = None
) -> Tensor:
    return ops.linear(ops.silu_gate(ops.linear(x, gate_up, expert), limit), down, expert)


@dataclass(frozen=True, slots=True)
class Moe:
    """Each expert sees its rows padded to whole tiles, and a row's results are added in rank order."""

    weights: MoeWeights
    routing: Routing
    arithmetic: Arithmetic

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "router", self.weights.router
        yield "expert gate and up", self.weights.gate_up[0]
        yield "expert down", self.weights.down[0]
        if self.weights.shared is not None:
            yield "gate and up", self.weights.shared.gate_up
            yield "down", self.weights.shared.down

    def route(self, logits: Tensor, ids: Sequence[int] = ()) -> Tensor:
        """Router logits [rows, n_experts (+ 1)] to [rows, 2k (+ 1)]: expert numbers, their weights, the switch.

        ids  tokens of the rows, for a layer whose experts are looked up
        """
        weights, routing = self.weights, self.routing
        n = weights.gate_up.shape[0]
        if weights.table is not None:
            # Looked-up numbers ride along in float32, exact up to 2^24.
            logits = torch.cat((logits, weights.table[list(ids)].to(logits.dtype)), dim=1)

        def pick(part: Tensor) -> Tensor:
            if weights.table is not None:
                index = part[:, -routing.used :].long()
                chosen = weigh_experts(routing, scores(routing, part[:, :n]), index)
            else:
                index, chosen = choose_experts(routing, part[:, :n], weights.bias)
            found = (index.to(part.dtype), chosen)
            return torch.cat((*found, torch.sigmoid(part[:, n : n + 1])) if weights.switch else found, dim=-1)

        return self.arithmetic.rows(pick, logits)

    def forward(self, x: Tensor, ids: Sequence[int] = ()) -> Tensor:
        """x [rows, hidden]; same shape back."""
        ops, weights, k = self.arithmetic, self.weights, self.routing.used
        routed = self.route(ops.linear(x, weights.router), ids)
        groups: dict[int, list[tuple[int, int]]] = {}
        for row, experts in enumerate(routed[:, :k].tolist()):
            for rank, expert in enumerate(experts):
                groups.setdefault(int(expert), []).append((row, rank))
        parts: dict[tuple[int, int], Tensor] = {}
        every = list(range(x.shape[0]))
        for expert, places in groups.items():
            rows = [row for row, _ in places]
            inputs = x if rows == every else x[rows]
            out = _gated(ops, inputs, weights.gate_up, weights.down, self.routing.limit, expert)
            parts.update(zip(places, each_row(out), strict=True))
        mixed = []
        for row in range(x.shape[0]):
            total = parts[row, 0] * routed[row, k]
            for rank in range(1, k):
                total = total + parts[row, rank] * routed[row, k + rank]
            mixed.append(total)
        combined = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        if weights.shared is None:
            return combined
        shared = _gated(ops, x, weights.shared.gate_up, weights.shared.down, self.routing.limit)
        return combined + (shared * routed[:, 2 * k :] if weights.switch else shared)
