"""Every draft of every position in few passes over the head.

A loop that drafts at slot p reads the text up to there, and then its own drafts. As long as those are the text, what it
computes for them is known beforehand: so all slots draft at once, on the text's tokens. Each slot's drafts are a branch
of the text with keys of its own (`BranchCache`). Who drafts is `HeadWiring.recurrence`; `Drafter` is the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mtptools.decoder.mtp_head import Head
from mtptools.decoder.stream.passages import Passages
from mtptools.decoder.stream.trunk_pass import fed

__all__ = ["Drafts", "drafted"]


@dataclass(frozen=True, slots=True)
class Drafts:
    """One draft of every slot that has text for it.

    step    0 for the first draft;  layer  which one made it
    states  per passage, for the output matrix: [slots, hidden]. Slot p's predicts token p + 2 + step
    """

    step: int
    layer: int
    states: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """What a layer gave, per passage: for the output matrix, to go on from, and its memory."""

    posts: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    caches: tuple[Any, ...]


def drafted(head: Head, tapped: Tensor, passages: Passages, k: int, *, late: int = 0) -> list[Drafts]:
    """The first k drafts; tapped [rows, width] are the trunk's states as the head takes them.

    late  1 feeds the current token's embedding where the next one's belongs: a fault put in on purpose
    """
    texts = [list(passage.ids) for passage in passages.all]
    used = 1 if head.wiring.recurrence == "first" else head.depth
    exact = head.wiring.recurrence == "exact"
    sizes = [len(ids) - 1 for ids in texts]
    inputs: Sequence[Tensor] = [tapped[first : stop - 1] for _, first, stop in passages.bounds()]
    reads: list[_Read] = []  # of the text itself, by layer
    for j in range(min(used, k)):
        caches = [head.layers[j].block.new_cache() for _ in texts]
        tokens = [ids[1 + j - late : 1 + size - late] for ids, size in zip(texts, sizes, strict=True)]
        inputs = [x[: max(size - j, 0)] for x, size in zip(inputs, sizes, strict=True)]
        reads.append(_layer(head, j, inputs, tokens, j, caches))
        inputs = reads[-1].states
    out = [Drafts(0, 0, reads[0].posts)]
    last = reads[0]
    branches: dict[int, list[Any]] = {}
    for step in range(1, k):
        j = step % used
        if step < used and (exact or step == 1):  # what the drafts are fed is the text, and so it is read already
            last = reads[j]
        else:
            if j not in branches:
                lag = 0 if exact or j <= 1 else j
                branches[j] = [cache.branch(lag) for cache in reads[j].caches]
            tokens = [ids[1 + step :] for ids in texts]
            states = [x[: len(new)] for x, new in zip(last.states, tokens, strict=True)]
            last = _layer(head, j, states, tokens, step, branches[j])
        out.append(Drafts(step, j, last.posts))
    return out


def _layer(
    head: Head, index: int, states: Sequence[Tensor], tokens: Sequence[list[int]], position: int, caches: Sequence[Any]
) -> _Read:
    """MTP layer `index` on the slots of every passage; `position` is the first slot's."""
    block = head.layers[index].block
    rows = [
        block.mix(head.enter(index, x, ids, position), cache, position) if ids else x
        for x, ids, cache in zip(states, tokens, caches, strict=True)
    ]
    joined = fed(block, torch.cat(rows), [token for ids in tokens for token in ids])
    hidden = head.layers[index].norm.shape[0]
    post, state = head.leave(index, joined) if len(joined) else (joined[:, :hidden], joined)
    sizes = [len(ids) for ids in tokens]
    return _Read(torch.split(post, sizes), torch.split(state, sizes), tuple(caches))
