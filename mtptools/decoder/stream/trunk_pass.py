"""Every layer of the trunk over all passages, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.stream.passages import Passages
from mtptools.decoder.trunk import Layer, Trunk
from mtptools.errors import CorruptError

__all__ = ["FEED_ROWS", "check_finite", "embedded", "fed", "through"]

FEED_ROWS: Final = 1024
"""Rows that a feed-forward part takes at a time: experts are decoded once for so many."""


def embedded(trunk: Trunk, passages: Passages) -> Tensor:
    """What the first layer reads: float32 [rows, width]. Every token's row is looked up once."""
    ids = passages.ids
    tokens = sorted(set(ids))
    place = {token: at for at, token in enumerate(tokens)}
    device = trunk.norm.device
    table = trunk.embed[torch.tensor(tokens, device=device)].float()
    x = table[torch.tensor([place[token] for token in ids], device=device)]
    return x.repeat(1, trunk.streams) if trunk.streams > 1 else x


def through(layer: Layer, states: Tensor, passages: Passages) -> Tensor:
    """States [rows, width] after one layer; every passage begins at position 0. Overwrites `states`."""
    for _, first, stop in passages.bounds():
        states[first:stop] = layer.mix(states[first:stop], layer.new_cache(), 0)
    return fed(layer, states, passages.ids)


def fed(layer: Layer, states: Tensor, ids: Sequence[int]) -> Tensor:
    """The feed-forward part on rows [rows, width] of any passages. Overwrites `states`."""
    for at in range(0, states.shape[0], FEED_ROWS):
        part = slice(at, at + FEED_ROWS)
        states[part] = layer.feed(states[part], ids[part])
    return states


def check_finite(states: Tensor, after: str, where: object) -> None:
    """Raises CorruptError naming the layer after which a state is not finite."""
    if not bool(torch.isfinite(states).all()):
        raise CorruptError(
            f"states are not finite after {after}",
            where=where,
            hint="mtptools validate: the layer's tensors may be damaged; --dtype float16 may be too narrow",
        )
