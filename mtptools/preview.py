"""A planned output as a checkpoint, before anything is written: for measuring what would come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from mtptools.checkpoint import CONFIG, Checkpoint
from mtptools.plan import Entry, Plan
from mtptools.tensors import Tensor
from mtptools.views import repacked

__all__ = ["preview"]


def preview(plan: Plan, base: Checkpoint) -> Checkpoint:
    """The checkpoint that `plan` would write: `base`, the input whose files it keeps, with the plan's tensors.

    A tensor that the plan makes is made when it is first read, and kept: what is recoded fits in memory, since it is
    a head. Bytes are those that would be written.
    """
    tensors = {entry.name: _tensor(entry) for entry in plan.entries}
    config = next((side.content for side in plan.side if side.name == CONFIG and side.content is not None), None)
    return replace(base, tensors=tensors, config=base.config if config is None else json.loads(config))


def _tensor(entry: Entry) -> Tensor:
    if entry.passes:
        return entry.source.renamed(entry.name)
    return repacked(entry.name, entry.source.shape, entry.codec, _rows(entry))


def _rows(entry: Entry) -> Callable[[int, int], bytes]:
    @cache
    def whole() -> bytes:
        return b"".join(entry.made())

    size = entry.nbytes // max(entry.source.n_rows, 1)

    def packed(start: int, stop: int) -> bytes:
        return whole()[start * size : stop * size]

    return packed
