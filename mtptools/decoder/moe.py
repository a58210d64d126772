"""Feed-forward parts: the dense gated MLP, and experts with a shared one.

Formulas: transformers 5.23, `Qwen3_5MLP` and `Qwen3_5MoeSparseMoeBlock`: softmax over all experts, the k best
renormalised to sum one, plus sigmoid(switch) times the shared expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mtptools.decoder.ops import Arithmetic, each_row

__all__ = ["Mlp", "MlpWeights", "Moe", "MoeWeights"]


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """gate_up [2F, hidden]: gate rows, then up rows; down [hidden, F]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """router [n_experts + 1, hidden] float32, its last row the shared expert's switch;
    gate_up [n_experts, 2F, hidden]; down [n_experts, hidden, F]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: MlpWeights


class Mlp:
    def __init__(self, weights: MlpWeights, arithmetic: Arithmetic) -> None:
        self.weights = weights
        self.arithmetic = arithmetic

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, hidden]; same shape back."""
        return _gated(self.arithmetic, x, self.weights.gate_up, self.weights.down)


def _gated(arithmetic: Arithmetic, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return arithmetic.linear(arithmetic.silu_gate(arithmetic.linear(x, gate_up)), down)


class Moe:
    """Each expert sees its rows padded to whole tiles, and a row's k results are added in rank order."""

    def __init__(self, weights: MoeWeights, n_used: int, arithmetic: Arithmetic) -> None:
        self.weights = weights
        self.n_used = n_used
        self.arithmetic = arithmetic
        self.shared = Mlp(weights.shared, arithmetic)

    def route(self, scores: Tensor) -> Tensor:
        """Router scores [rows, n_experts + 1] to [rows, 2k + 1]: expert numbers, their weights, the switch."""

        def pick(part: Tensor) -> Tensor:
            top, index = torch.softmax(part[:, :-1], -1).topk(self.n_used, dim=-1)
            top = top / top.sum(-1, keepdim=True)
            return torch.cat((index.to(top.dtype), top, torch.sigmoid(part[:, -1:])), dim=-1)

        return self.arithmetic.rows(pick, scores)

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, hidden]; same shape back."""
        ops, weights, k = self.arithmetic, self.weights, self.n_used
        routed = self.route(ops.linear(x, weights.router))
        groups: dict[int, list[tuple[int, int]]] = {}
        for row, experts in enumerate(routed[:, :k].tolist()):
            for rank, expert in enumerate(experts):
                groups.setdefault(int(expert), []).append((row, rank))
        parts: dict[tuple[int, int], Tensor] = {}
        for expert, places in groups.items():
            rows = [row for row, _ in places]
            inputs = x if len(rows) == x.shape[0] else x[rows]
            out = _gated(ops, inputs, weights.gate_up[expert], weights.down[expert])
            parts.update(zip(places, each_row(out), strict=True))
        mixed = []
        for row in range(x.shape[0]):
            total = parts[row, 0] * routed[row, k]
            for rank in range(1, k):
                total = total + parts[row, rank] * routed[row, k + rank]
            mixed.append(total)
        combined = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return combined + self.shared.forward(x) * routed[:, 2 * k :]
