"""The importance matrix of a head: what its matrices are multiplied with while it reads text.

Text is cut into chunks as llama-imatrix cuts it. The trunk reads a chunk, the head reads the trunk's states and the
tokens that follow them, as it does when a runtime reads a prompt (`Drafter.observe`): slot i takes state i and token
i + 1, a deeper layer what the one before it would hand on. Nothing is sampled, and no logits are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from mtptools.decoder.finite import not_finite
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.recorder import Recorder
from mtptools.decoder.speculate import prefill
from mtptools.decoder.trunk import States
from mtptools.errors import UsageError
from mtptools.importance import Importance

__all__ = ["chunks_of", "measure_importance"]

Progress = Callable[[int], None]


def chunks_of(ids: Sequence[int], context: int, start: Sequence[int] = ()) -> Iterator[list[int]]:
    """Pieces of `context` tokens; what is left over at the end is not used.

    start  what the tokenizer puts before a text: it takes the place of each piece's first tokens, as llama-imatrix does
    """
    for at in range(0, len(ids) - context + 1, context):
        yield [*start, *ids[at + len(start) : at + context]]


@torch.inference_mode()
def measure_importance(
    model: Model,
    recorder: Recorder,
    chunks: Sequence[Sequence[int]],
    datasets: Sequence[str] = (),
    progress: Progress = lambda tokens: None,
) -> Importance:
    """Run a model that was loaded with `recorder` over chunks of text, all of one length.

    progress  called with the tokens of each chunk that is done

    Raises UsageError (no chunk, chunks too short for the head), MissingHeadError (none, and the scope is the head's)
    and InputError (states that are not finite).
    """
    head = model.head if recorder.scope == "all" else model.require_head()
    depth = head.depth if head is not None else 0
    shortest = min(map(len, chunks), default=0)
    if shortest < depth + 2:
        raise UsageError(
            f"chunks of {shortest} tokens are too short for {depth} MTP layer(s)", hint=f"--context {16 * (depth + 1)}"
        )
    recorder.on = True
    try:
        for ids in chunks:
            states = prefill(model, ids, model.trunk.new_cache())
            if not np.isfinite(states.post.cpu().numpy()).all():
                raise not_finite(model, ids)
            if head is not None:
                _prime(head, recorder, states, ids)
            progress(len(ids))
    finally:
        recorder.on = False
    return Importance(recorder.entries(), tuple(datasets), len(chunks), shortest)


def _prime(head: Head, recorder: Recorder, states: States, ids: Sequence[int]) -> None:
    """All layers over a chunk, whoever of them would draft."""
    state = states.tap(head.wiring.tap)
    for layer in range(head.depth):
        rows = len(ids) - 1 - layer
        cache = head.layers[layer].block.new_cache()
        post, state = head.step(layer, state[:rows], ids[1 + layer :], cache, layer)
        recorder.hear_around(layer, post)
