"""Which experts a token goes to, and with what weight.

Formulas: transformers 5.23, `Qwen3NextTopKRouter` (softmax), `DeepseekV3TopkRouter` and `Glm4MoeTopkRouter` (sigmoid,
a bias that selects and does not weigh, groups), `DeepseekV4TopKRouter` (square root of softplus).
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from mtptools.decoder.settings import Routing

__all__ = ["choose_experts", "scores", "weigh_experts"]

_SMALLEST: Final = 1e-20
"""Added to a sum of weights before dividing by it, as the source does."""


def scores(routing: Routing, logits: Tensor) -> Tensor:
    """[rows, n_experts] float32 to what stands for each expert."""
    if routing.scoring == "softmax":
        return torch.softmax(logits, -1)
    if routing.scoring == "sigmoid":
        return torch.sigmoid(logits)
    return functional.softplus(logits).sqrt_()


def choose_experts(routing: Routing, logits: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Router logits [rows, n_experts] to the numbers and weights [rows, used] of the chosen experts."""
    found = scores(routing, logits)
    ranked = found if bias is None else found + bias
    if routing.groups > 1:
        ranked = _within_groups(routing, ranked)
    index = ranked.topk(routing.used, dim=-1).indices
    return index, weigh_experts(routing, found, index)


def weigh_experts(routing: Routing, found: Tensor, index: Tensor) -> Tensor:
    """Weights [rows, used] of experts `index` from the scores of all."""
    weights = found.gather(1, index)
    if routing.normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + _SMALLEST)
    return weights * routing.scale if routing.scale != 1 else weights


def _within_groups(routing: Routing, ranked: Tensor) -> Tensor:
    """-inf for experts outside of the best groups; a group is as good as its two best experts together."""
    grouped = ranked.view(ranked.shape[0], routing.groups, -1)
    best = grouped.topk(2, dim=-1).values.sum(-1).topk(routing.groups_used, dim=-1).indices
    open_ = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=ranked.device).scatter_(1, best, True)
    return grouped.masked_fill(~open_.unsqueeze(-1), float("-inf")).view_as(ranked)
