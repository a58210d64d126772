"""Our decoder on a runtime's own text: what it would have said at every position, given the same tokens before.

Two passes. In the second the stream is disturbed after every layer by what rounding to bfloat16 would do: it tells how
far logits may move in an engine that rounds, and where a router would choose other experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from mtptools.decoder.acceptance import LOGIT_ROWS, simulate
from mtptools.decoder.cache import LayerCache
from mtptools.decoder.hyper import HyperBlock
from mtptools.decoder.model import Model
from mtptools.decoder.moe import Moe
from mtptools.decoder.packed import Weight
from mtptools.decoder.speculate import prefill
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.decoder.trunk import Block, Layer, States
from mtptools.errors import UsageError
from mtptools.runtimes.generation import TOP, Generation
from mtptools.runtimes.reading import Reading

__all__ = ["read"]

ULP: Final = 2.0**-9
"""Half a unit in the last place of bfloat16, relative."""


@dataclass(frozen=True, slots=True)
class _Listening:
    """A layer's routed experts, and which were chosen: a tensor [rows, used] a call."""

    inner: Moe
    chosen: list[Tensor]

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        return self.inner.matrices()

    def forward(self, x: Tensor, ids: Sequence[int] = ()) -> Tensor:
        routed = self.inner.route(self.inner.arithmetic.linear(x, self.inner.weights.router), ids)
        self.chosen.append(routed[:, : self.inner.routing.used].sort(-1).values.cpu())
        return self.inner.forward(x, ids)


@dataclass(frozen=True, slots=True)
class _Disturbed:
    """A layer whose output is off by up to ULP, each value by its own."""

    inner: Layer
    generator: torch.Generator

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        return self.inner.matrices()

    def new_cache(self) -> LayerCache:
        return self.inner.new_cache()

    def mix(self, x: Tensor, cache: Any, position: int) -> Tensor:
        return self.inner.mix(x, cache, position)

    def feed(self, x: Tensor, ids: Sequence[int]) -> Tensor:
        return self.inner.feed(x, ids)

    def shifted(self, by: float) -> Layer:
        return _Disturbed(self.inner.shifted(by), self.generator)

    def forward(self, x: Tensor, cache: Any, position: int, ids: Sequence[int]) -> Tensor:
        out = self.inner.forward(x, cache, position, ids)
        noise = torch.rand(out.shape, generator=self.generator).mul_(2 * ULP).sub_(ULP)
        return out * (1 + noise.to(out.device))


@dataclass
class _Pass:
    """A model that is listened to; chosen: one list a layer with experts."""

    model: Model
    chosen: list[list[Tensor]] = field(default_factory=list)

    @staticmethod
    def over(model: Model, seed: int | None) -> _Pass:
        chosen: list[list[Tensor]] = []
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        blocks = []
        for block in model.trunk.blocks:
            heard: Layer = block
            if isinstance(block, Block | HyperBlock) and isinstance(block.ffn, Moe):
                chosen.append([])
                heard = replace(block, ffn=_Listening(block.ffn, chosen[-1]))
            blocks.append(heard if generator is None else _Disturbed(heard, generator))
        return _Pass(replace(model, trunk=replace(model.trunk, blocks=tuple(blocks))), chosen)

    def states(self, ids: Sequence[int]) -> States:
        return prefill(self.model, ids, self.model.trunk.new_cache())


@torch.inference_mode()
def read(model: Model, made: Generation, k: int, also: Mapping[int, int] | None = None) -> Reading:
    """What our decoder says to a text.

    k     drafts a step of our head on that text; a model without a head counts none
    also  position -> another token whose logit is wanted there

    Raises UsageError where prompt and text do not fit the model's context.
    """
    ids = [*made.prompt, *made.tokens[:-1]]
    context = model.hparams.context_length
    if context and len(ids) > context:
        raise UsageError(f"{len(ids)} tokens do not fit the context of {context}", hint="fewer --tokens")
    exact, disturbed = _Pass.over(model, None), _Pass.over(model, 1)
    states, moved = exact.states(ids), disturbed.states(ids)
    first = len(made.prompt) - 1
    found = Reading()
    for start in range(first, len(ids), LOGIT_ROWS):
        stop = min(start + LOGIT_ROWS, len(ids))
        rows = model.trunk.logits(states.part(start, stop)).cpu()
        others = model.trunk.logits(moved.part(start, stop)).cpu()
        for at, (row, other) in enumerate(zip(rows, others, strict=True), start - first):
            more = () if also is None or at not in also else (also[at],)
            _read_row(found, row, other, (made.tokens[at], *made.top[at], *more), made.banned)
    found.rerouted = _rerouted(exact.chosen, disturbed.chosen, first)
    found.counts = _counts(model, made, states, k)
    return found


def _read_row(found: Reading, row: Tensor, other: Tensor, asked: Sequence[int], banned: frozenset[int]) -> None:
    open_ = row.clone()
    open_[list(banned)] = float("-inf")
    best = torch.topk(open_, min(TOP, open_.shape[0])).indices.tolist()
    wanted = sorted({*best, *asked} - banned | {asked[0]})
    found.best.append(int(open_.argmax()))  # of equal ones the first, as llama.cpp and NumPy take it
    found.second.append(next(token for token in best if token != found.best[-1]))
    found.logits.append(dict(zip(wanted, row[wanted].tolist(), strict=True)))
    found.disturbed.append(dict(zip(wanted, other[wanted].tolist(), strict=True)))


def _rerouted(exact: Sequence[Sequence[Tensor]], moved: Sequence[Sequence[Tensor]], first: int) -> list[bool]:
    """Per position from `first` on: does a layer choose other experts in the disturbed pass?"""
    if not exact:
        return []
    pairs = [(torch.cat(list(a)), torch.cat(list(b))) for a, b in zip(exact, moved, strict=True)]
    other = torch.stack([(a != b).any(-1) for a, b in pairs]).any(0)
    return [bool(one) for one in other[first:]]


def _counts(model: Model, made: Generation, states: States, k: int) -> DraftCounts | None:
    if model.head is None or len(made.tokens) < 2 or k < 1:
        return None
    trace = Trace(list(made.prompt), len(made.tokens), tokens=list(made.tokens), states=states)
    return simulate(model.head, trace, k)
