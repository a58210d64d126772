"""Where do numbers stop being numbers? Asked only when logits are not finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mtptools.decoder.model import Model
from mtptools.errors import CorruptError

__all__ = ["not_finite"]


def not_finite(model: Model, ids: Sequence[int]) -> CorruptError:
    """The error for logits after `ids` that are not finite: reads them again, layer by layer, and names the first."""
    return CorruptError(
        f"the trunk's logits for token {len(ids)} are not finite: {_place(model, ids)}",
        where=model.where,
        hint="damaged weights, or too large for float16: try --dtype float32, then another copy of the file",
    )


def _place(model: Model, ids: Sequence[int]) -> str:
    trunk, cache = model.trunk, model.trunk.new_cache()
    x = trunk.embed[torch.tensor(ids, dtype=torch.long, device=trunk.norm.device)].float()
    if not torch.isfinite(x).all():
        return "the embedding of the text is the first that is not"
    x = x.repeat(1, trunk.streams)
    for number, (block, layer) in enumerate(zip(trunk.blocks, cache.layers, strict=True)):
        x = block.forward(x, layer, 0, ids)
        if not torch.isfinite(x).all():
            return f"layer {number} is the first whose output is not"
    return "every layer's output is, the final norm or the output matrix is not"
