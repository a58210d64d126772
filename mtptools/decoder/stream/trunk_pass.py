"""Every layer of the trunk over all passages, one layer in memory at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.moe import Moe
from mtptools.decoder.stream.experts import Routed
from mtptools.decoder.stream.passages import Passages
from mtptools.decoder.trunk import Layer, Trunk
from mtptools.errors import CorruptError

__all__ = ["EXPERT_ROWS", "MIX_ROWS", "check_finite", "embedded", "fed", "through"]

MIX_ROWS: Final = 512
"""Rows of a text that a layer takes at a time, whole chunks of keys: what it makes of more leaves the cache."""

FEED_ROWS: Final = 512
"""Rows that a feed-forward part takes at a time, for the same reason."""

EXPERT_ROWS: Final = 1024
"""The same of experts that are decoded once for so many, since what each makes of a row is held to the end."""

ALL_ROWS: Final = 8192
"""The same of experts that add up what they make of a row: nothing but states is held."""


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
        cache = layer.new_cache()
        for at in range(first, stop, MIX_ROWS):
            part = slice(at, min(at + MIX_ROWS, stop))
            states[part] = layer.mix(states[part], cache, at - first)
    return fed(layer, states, passages.ids)


def fed(layer: Layer, states: Tensor, ids: Sequence[int]) -> Tensor:
    """The feed-forward part on rows [rows, width] of any passages. Overwrites `states`."""
    step = feed_rows(layer)
    for at in range(0, states.shape[0], step):
        part = slice(at, at + step)
        states[part] = layer.feed(states[part], ids[part])
    return states


def feed_rows(layer: Layer) -> int:
    """Rows that the feed-forward part of a layer takes at a time."""
    ffn = getattr(layer, "ffn", None)
    if isinstance(ffn, Routed) and ffn.adds:
        return ALL_ROWS
    return EXPERT_ROWS if isinstance(ffn, Moe) else FEED_ROWS


def check_finite(states: Tensor, after: str, where: object) -> None:
    """Raises CorruptError naming the layer after which a state is not finite."""
    if not bool(torch.isfinite(states).all()):
        raise CorruptError(
            f"states are not finite after {after}",
            where=where,
            hint="mtptools validate: the layer's tensors may be damaged; --dtype float16 may be too narrow",
        )
