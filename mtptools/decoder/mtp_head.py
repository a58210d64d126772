"""The MTP head: fuse a trunk state with the next token's embedding, run one decoder layer, predict the token after.

Slot i takes the trunk state of position i and the embedding of token i + 1, and predicts token i + 2. Layer j
of a deeper head takes layer j - 1's state of slot i and the embedding of token i + j + 1, and predicts i + j + 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

import torch
from torch import Tensor

from mtptools.decoder.cache import Cache
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Weight
from mtptools.decoder.replay import Capture, Replays, cannot, on_cuda
from mtptools.decoder.trunk import Layer
from mtptools.errors import InputError
from mtptools.vocab.maps import Absolute, DraftVocabulary

__all__ = ["RECURRENCES", "Choose", "Head", "HeadLayer", "HeadWiring"]

Choose = Callable[[Tensor, int], int]
"""(logits [vocab] float32, absolute position of the token) to the token."""

RECURRENCES: Final = ("cycle", "exact", "first")


@dataclass(frozen=True, slots=True)
class HeadWiring:
    """What shapes cannot tell.

    concat      columns of the fusion: "eh" embedding first, "he" hidden state first
    tap         trunk state that enters: "post" or "pre" the final norm; "streams" is "pre" where it is several
    recycle     head state that feeds the next step: "post" or "pre" the head's norm; "streams" as above
    mask_first  the embedding in slot 0 is replaced by zeros
    recurrence  who drafts the k-th token: "cycle" layer k % depth, on its predecessor's one state; "exact" the same,
                but layer j first catches up on the slots that wait for drafted tokens, which is what it was trained
                on (the two differ from the third layer on); "first" layer 0 alone, whatever the depth
    """

    concat: str = "eh"
    tap: str = "post"
    recycle: str = "post"
    mask_first: bool = False
    recurrence: str = "cycle"


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """fuse [hidden, 2 hidden]; embed_norm, hidden_norm, norm: float32 [hidden], the factors themselves.

    Where the trunk has several streams each of them is fused with the same embedding.

    embed, output  [vocab, hidden]: the trunk's unless the layer brings its own
    collapse       mixes the streams down before `norm`; None where there is one
    d2t            int64 [draft], ascending: the token of each row of `output` [draft, hidden], where it is reduced to a
                   draft vocabulary; None: row i is token i
    """

    fuse: Tensor
    embed_norm: Tensor
    hidden_norm: Tensor
    block: Layer
    norm: Tensor
    embed: Weight
    output: Weight
    collapse: Callable[[Tensor], Tensor] | None = None
    d2t: Tensor | None = None

    @property
    def vocabulary(self) -> DraftVocabulary:
        """The tokens it can draft."""
        size = self.embed.shape[0]
        ids = torch.arange(size) if self.d2t is None else self.d2t.cpu()
        return DraftVocabulary(Absolute(ids.numpy()), size)

    def over(self, vocabulary: DraftVocabulary) -> HeadLayer:
        """The layer reduced to a draft vocabulary: those rows of the output matrix, no new values.

        Raises InputError when a token has no row (the layer is reduced already), or another vocabulary is meant.
        """
        ours = self.vocabulary
        if vocabulary.size != ours.size:
            raise InputError(
                f"the draft vocabulary is of {vocabulary.size} tokens, the model has {ours.size}",
                hint="make it for this model: mtptools prune-vocab --help",
            )
        rows = vocabulary.within(ours)
        picked = self.output
        if isinstance(picked, Tensor):
            picked = picked[torch.tensor(rows.ids, device=picked.device)]
        else:
            picked = picked.picked(rows.runs())
        return replace(self, output=picked, d2t=torch.tensor(vocabulary.ids, device=self.norm.device))

    def swapped(self) -> HeadLayer:
        """With the halves of the fusion matrix swapped."""
        half = self.fuse.shape[1] // 2
        return replace(self, fuse=torch.cat((self.fuse[:, half:], self.fuse[:, :half]), dim=1))

    def shifted(self, by: float) -> HeadLayer:
        """With `by` added to the factors of all norms."""
        norms = {name: getattr(self, name) + by for name in ("embed_norm", "hidden_norm", "norm")}
        return replace(self, block=self.block.shifted(by), **norms)


@dataclass(frozen=True, slots=True)
class Head:
    layers: tuple[HeadLayer, ...]
    wiring: HeadWiring
    eps: float
    arithmetic: Arithmetic
    replays: tuple[Replays, ...] = field(default=(), init=False, compare=False)
    """By layer, see `recording`; none: passes are made anew."""

    def recording(self, captures: Callable[[torch.device], Capture] = on_cuda) -> Head:
        """The same with its short passes recorded, where they can be. A changed copy (`replace`) records nothing."""
        found, ops, blocks = replace(self), self.arithmetic, [layer.block for layer in self.layers]
        if cannot(blocks, ops.device, kernels=ops.kernels) is None:
            object.__setattr__(found, "replays", tuple(Replays([block], captures) for block in blocks))
        return found

    def new_cache(self, index: int) -> Cache:
        """The memory that layer `index` has of a text."""
        new = self.layers[index].block.new_cache
        return self.replays[index].cache(lambda: [new()]) if self.replays else Cache([new()])

    @property
    def depth(self) -> int:
        return len(self.layers)

    def step(
        self, index: int, states: Tensor, tokens: Sequence[int], cache: Any, position: int
    ) -> tuple[Tensor, Tensor]:
        """Layer `index` on consecutive slots.

        states [rows, width] float32 and tokens [rows] are what the slots take; position is the first one's.
        Returns (state for the output matrix [rows, hidden], state to recycle [rows, width]).
        """
        x = self.enter(index, states, tokens, position)
        return self.leave(index, self.layers[index].block.forward(x, cache, position, tokens))

    def draft_step(
        self, index: int, states: Tensor, tokens: Sequence[int], cache: Cache, position: int
    ) -> tuple[Tensor, Tensor]:
        """As `step`, in a memory of `new_cache`; recorded where passes are."""
        (own,) = cache.layers
        width, hidden = states.shape[1], self.layers[index].hidden_norm.shape[0]

        def through(x: Tensor) -> Tensor:
            fused = self._fused(index, *torch.split(x, [width, hidden], dim=1))
            return torch.cat(self.leave(index, self.layers[index].block.forward(fused, own, position, tokens)), dim=1)

        slot = cache.length
        cache.length += len(tokens)
        if not self.replays:
            return self.step(index, states, tokens, own, position)
        x = torch.cat((states, self._embedded(index, tokens, position)), dim=1)
        both = self.replays[index].run(x, cache, slot, through, (position - slot,))
        post, state = torch.split(both, [hidden, width], dim=1)
        return post, state

    def enter(self, index: int, states: Tensor, tokens: Sequence[int], position: int) -> Tensor:
        """Norms and fusion: what the block of layer `index` reads, [rows, width]. Arguments as for `step`."""
        return self._fused(index, states, self._embedded(index, tokens, position))

    def _embedded(self, index: int, tokens: Sequence[int], position: int) -> Tensor:
        layer = self.layers[index]
        ids = torch.tensor(tokens, dtype=torch.long, device=layer.hidden_norm.device)
        embedded = layer.embed[ids].float()
        if self.wiring.mask_first and position == 0:
            embedded[0] = 0.0
        return embedded

    def _fused(self, index: int, states: Tensor, embedded: Tensor) -> Tensor:
        layer, ops = self.layers[index], self.arithmetic
        hidden = layer.hidden_norm.shape[0]
        streams = states.shape[1] // hidden
        embedded = ops.rms_norm(embedded, layer.embed_norm, self.eps)
        entering = ops.rms_norm(states.reshape(-1, hidden), layer.hidden_norm, self.eps)
        if streams > 1:
            embedded = embedded.repeat_interleave(streams, dim=0)
        fused = torch.cat((embedded, entering) if self.wiring.concat != "he" else (entering, embedded), dim=1)
        return ops.linear(fused, layer.fuse).view(-1, streams * hidden)

    def leave(self, index: int, pre: Tensor) -> tuple[Tensor, Tensor]:
        """What the block of layer `index` gave, [rows, width], as `step` returns it."""
        layer = self.layers[index]
        mixed = pre if layer.collapse is None else layer.collapse(pre)
        post = self.arithmetic.rms_norm(mixed, layer.norm, self.eps)
        return post, post if self.wiring.recycle == "post" and pre.shape[1] == post.shape[1] else pre

    def logits(self, states: Tensor, index: int = 0) -> Tensor:
        """Float32 [rows, vocab] from layer `index`'s states; -inf for tokens outside of its draft vocabulary."""
        layer = self.layers[index]
        drafted = self.arithmetic.logits(states, layer.output)
        if layer.d2t is None:
            return drafted
        every = drafted.new_full((drafted.shape[0], layer.embed.shape[0]), -inf)
        return every.index_copy_(1, layer.d2t, drafted)

    @property
    def reduced(self) -> bool:
        """Does it draft over less than the whole vocabulary?"""
        return any(layer.d2t is not None for layer in self.layers)

    def over(self, vocabulary: DraftVocabulary) -> Head:
        """The head reduced to a draft vocabulary, see `HeadLayer.over`. Layers that share an output matrix still do."""
        layers: list[HeadLayer] = []
        for layer in self.layers:
            pairs = zip(self.layers, layers, strict=False)
            twin = next((done for before, done in pairs if before.output is layer.output), None)
            layers.append(layer.over(vocabulary) if twin is None else replace(layer, output=twin.output, d2t=twin.d2t))
        return replace(self, layers=tuple(layers))

    def rewired(self, **changes: object) -> Head:
        return replace(self, wiring=replace(self.wiring, **changes))  # type: ignore[arg-type]  # names of HeadWiring
