"""Feed-forward parts: the dense gated MLP, and routed experts with a shared one.

Formulas: transformers 5.23, `Qwen3_5MLP`, `Qwen3_5MoeSparseMoeBlock` (the shared expert behind a sigmoid switch),
`DeepseekV3MoE` (the shared expert as it is).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

import torch
from torch import Tensor

from mtptools.decoder.ops import Arithmetic, by_rows
from mtptools.decoder.packed import Weight, at_once, matrix
from mtptools.decoder.routing import choose_experts, scores, weigh_experts
from mtptools.decoder.runs import Runs
from mtptools.decoder.settings import Routing

__all__ = ["FEW", "Mlp", "MlpWeights", "Moe", "MoeWeights"]


FEW: Final = 16
"""Rows up to which each meets its experts by itself: then two that meet the same read it twice."""


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
    recordable: ClassVar[bool] = True

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "gate and up", self.weights.gate_up
        yield "down", self.weights.down

    def forward(self, x: Tensor, ids: Sequence[int] = ()) -> Tensor:
        """x [rows, hidden]; same shape back."""
        return _gated(self.arithmetic, self.arithmetic.linear, x, self.weights, self.limit)


def _gated(
    ops: Arithmetic,
    multiply: Callable[[Tensor, Weight], Tensor],
    x: Tensor,
    weights: MlpWeights | MoeWeights,
    limit: float,
) -> Tensor:
    return multiply(ops.silu_gate(multiply(x, weights.gate_up), limit), weights.down)


@dataclass(frozen=True, slots=True)
class Moe:
    """Each expert sees its rows padded to whole tiles, and a row's results are added in rank order."""

    weights: MoeWeights
    routing: Routing
    arithmetic: Arithmetic

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield "router", self.weights.router
        yield "expert gate and up", matrix(self.weights.gate_up, 0)
        yield "expert down", matrix(self.weights.down, 0)
        if self.weights.shared is not None:
            yield "gate and up", self.weights.shared.gate_up
            yield "down", self.weights.shared.down

    @property
    def recordable(self) -> bool:
        return self.weights.table is None and any(True for _ in self.stacks())

    def stacks(self) -> Iterator[tuple[str, Weight]]:
        """(what, weight [n, N, K]) of products of all experts at once."""
        if at_once(self.weights.gate_up) and at_once(self.weights.down):
            yield "experts' gate and up", self.weights.gate_up
            yield "experts' down", self.weights.down

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
        logits = ops.linear(x, weights.router)
        if ops.kernels and weights.table is None:
            return self._by_kernels(x, logits)
        routed = self.route(logits, ids)
        parts = self._each(x, [int(expert) for row in routed[:, :k].tolist() for expert in row])
        mixed = parts[:, 0] * routed[:, k : k + 1]
        for rank in range(1, k):
            mixed = mixed + parts[:, rank] * routed[:, k + rank : k + rank + 1]
        if weights.shared is None:
            return mixed
        shared = _gated(ops, ops.linear, x, weights.shared, self.routing.limit)
        return mixed + (shared * routed[:, 2 * k :] if weights.switch else shared)

    def _by_kernels(self, x: Tensor, logits: Tensor) -> Tensor:
        """The same; of few rows nothing on the host has to know where they go."""
        ops, weights, limit = self.arithmetic, self.weights, self.routing.limit
        experts, shares = by_rows().route(logits, self.routing, weights.bias, weights.switch)
        parts = self._few(x, experts)
        if parts is None:
            parts = self._each(x, experts.flatten().tolist())
        shared = None if weights.shared is None else _gated(ops, ops.linear, x, weights.shared, limit)
        found: Tensor = by_rows().mix(parts, shares, shared, weights.switch)
        return found

    def _few(self, x: Tensor, experts: Tensor) -> Tensor | None:
        """As `_each`, experts [rows, used] int32; None where they have to be sorted."""
        ops, weights, flat = self.arithmetic, self.weights, experts.flatten()
        entered = ops.each(x, weights.gate_up, flat) if len(x) <= FEW else None
        left = None if entered is None else ops.each(ops.silu_gate(entered, self.routing.limit), weights.down, flat)
        return None if left is None else left.view(*experts.shape, -1)

    def _each(self, x: Tensor, experts: Sequence[int]) -> Tensor:
        """What each row's experts, `used` a row in rank order, make of it: [rows, used, hidden]."""
        ops, weights, limit, k = self.arithmetic, self.weights, self.routing.limit, self.routing.used
        order = sorted(range(len(experts)), key=experts.__getitem__)
        runs = Runs.of([experts[place] for place in order], x.device)
        places = torch.tensor(order, device=x.device)
        rows = places // k
        out = x.new_empty((len(order), x.shape[1]))
        if any(self.stacks()):
            out[places] = _gated(ops, partial(ops.grouped, runs=runs), x[rows], weights, limit)
        else:  # an expert at a time: what is held between is one's alone
            for expert, start, stop in runs:
                one = partial(ops.linear, index=expert)
                out[places[start:stop]] = _gated(ops, one, x[rows[start:stop]], weights, limit)
        return out.view(x.shape[0], k, -1)
