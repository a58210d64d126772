"""How much memory a pass takes, before it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mtptools.decoder.best import LOGIT_BYTES, ROWS, vocabulary_step
from mtptools.decoder.resident import Resident
from mtptools.decoder.stream.trunk_pass import EXPERT_ROWS, MIX_ROWS

if TYPE_CHECKING:
    from mtptools.decoder.stream.model import Streamed

__all__ = ["held", "memory"]

PRODUCTS: Final = 2
"""Results of the widest product that are in memory at a time."""

EXPERT_STATES: Final = 3
"""States of all rows that experts take beside, where they add up: their input, the sum, and the layer's result."""


def memory(model: Streamed) -> int:
    """Bytes at a time: a layer, what it remembers of a text, states twice, and what products or choices take."""
    outline = model.outline
    matrices = outline.most(model.packed) + outline.cached(_longest(model))
    return matrices + held(model) + _states(model) + max(_products(model), _choices(model))


def held(model: Streamed) -> int:
    """Bytes from the first layer to the last: states, what is decoded ahead, and an output matrix that is packed."""
    ahead = 0 if model.helpers is None else model.outline.coming
    output = model.trunk.output
    return _states(model) + ahead + (output.nbytes if isinstance(output, Resident) else 0)


def _states(model: Streamed) -> int:
    return model.passages.n_rows * model.ckpt.hparams.hidden_size * model.trunk.streams * 4


def _longest(model: Streamed) -> int:
    return max(len(passage.ids) for passage in model.passages.all)


def _products(model: Streamed) -> int:
    """Of some rows within layers, of a whole text within the head; and of experts, which hold results or add them."""
    rows, outline, used = model.passages.n_rows, model.outline, model.ckpt.hparams.n_experts_used
    values = max(min(rows, MIX_ROWS) * outline.widest, _longest(model) * outline.head.size.widest)
    if used and (model.helpers is None or model.exact):
        values = max(values, min(rows, EXPERT_ROWS) * used * outline.widest)
    return values * 4 * PRODUCTS + (EXPERT_STATES * _states(model) if used else 0)


def _choices(model: Streamed) -> int:
    """A part of the output matrix, and its logits."""
    hidden = model.ckpt.hparams.hidden_size
    step = vocabulary_step(model.arithmetic, hidden)
    return step * (min(model.passages.n_rows, ROWS) * LOGIT_BYTES + hidden * 4)
