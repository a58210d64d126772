"""The MTP head: fuse a trunk state with the next token's embedding, run one decoder layer, predict the token after.

Slot i takes the trunk state of position i and the embedding of token i + 1, and predicts token i + 2. Layer j
of a deeper head takes layer j - 1's state of slot i and the embedding of token i + j + 1. Drafts beyond the
depth come from recurrence: step s runs layer s % depth on its predecessor's state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mtptools.decoder.attention import FullAttention
from mtptools.decoder.cache import KVCache
from mtptools.decoder.ops import Arithmetic, each_row
from mtptools.decoder.trunk import Block

__all__ = ["Drafter", "Head", "HeadLayer", "HeadWiring"]

Choose = Callable[[Tensor, int], int]
"""(logits [vocab] float32, absolute position of the token) to the token."""


@dataclass(frozen=True, slots=True)
class HeadWiring:
    """What shapes cannot tell.

    concat      columns of the fusion: "eh" embedding first, "he" hidden state first
    tap         trunk state that enters: "post" or "pre" the final norm
    recycle     head state that feeds the next step: "post" or "pre" the head's norm
    mask_first  the embedding in slot 0 is replaced by zeros
    """

    concat: str = "eh"
    tap: str = "post"
    recycle: str = "post"
    mask_first: bool = False


@dataclass(frozen=True, slots=True)
class HeadLayer:
    """fuse [hidden, 2 hidden]; embed_norm, hidden_norm, norm: float32 [hidden], the factors themselves."""

    fuse: Tensor
    embed_norm: Tensor
    hidden_norm: Tensor
    block: Block
    norm: Tensor

    @property
    def attention(self) -> FullAttention:
        assert isinstance(self.block.mixer, FullAttention)
        return self.block.mixer


@dataclass(frozen=True, slots=True)
class Head:
    """embed and output [vocab, hidden] are the trunk's unless the head brings its own."""

    layers: tuple[HeadLayer, ...]
    embed: Tensor
    output: Tensor
    wiring: HeadWiring
    eps: float
    arithmetic: Arithmetic

    @property
    def depth(self) -> int:
        return len(self.layers)

    def step(
        self, index: int, states: Tensor, tokens: Sequence[int], cache: KVCache, position: int
    ) -> tuple[Tensor, Tensor]:
        """Layer `index` on consecutive slots.

        states [rows, hidden] float32 and tokens [rows] are what the slots take; position is the first one's.
        Returns (state for the output matrix, state to recycle), each [rows, hidden].
        """
        layer, ops = self.layers[index], self.arithmetic
        ids = torch.tensor(tokens, dtype=torch.long, device=self.embed.device)
        embedded = self.embed.index_select(0, ids).float()
        if self.wiring.mask_first and position == 0:
            embedded[0] = 0.0
        parts = [
            ops.rms_norm(embedded, layer.embed_norm, self.eps),
            ops.rms_norm(states, layer.hidden_norm, self.eps),
        ]
        fused = torch.cat(parts if self.wiring.concat == "eh" else parts[::-1], dim=1)
        pre = layer.block.forward(ops.linear(fused, layer.fuse), cache, position, False)
        post = ops.rms_norm(pre, layer.norm, self.eps)
        return post, post if self.wiring.recycle == "post" else pre

    def logits(self, states: Tensor) -> Tensor:
        """Float32 [rows, vocab]."""
        return self.arithmetic.logits(states, self.output)

    def rewired(self, **changes: object) -> Head:
        return replace(self, wiring=replace(self.wiring, **changes))  # type: ignore[arg-type]  # names of HeadWiring


class Drafter:
    """A head at work on one text: real slots are kept, drafted ones forgotten."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.caches = [layer.attention.new_cache() for layer in head.layers]
        self.tokens: list[int] = []  # tokens[i] is token i + 1 of the text: what slot i takes
        self.waiting: list[list[Tensor]] = [[] for _ in head.layers]  # inputs of layer j not yet used
        self.ready: tuple[Tensor, Tensor] | None = None

    def observe(self, states: Tensor, next_tokens: Sequence[int]) -> None:
        """Real slots: trunk states [rows, hidden] (already tapped) and, for each, the token that follows it."""
        self.tokens.extend(next_tokens)
        self.waiting[0].extend(each_row(states))
        for j, cache in enumerate(self.caches):
            rows = len(self.tokens) - j - cache.length
            if rows <= 0:
                continue
            first = cache.length
            inputs, self.waiting[j] = torch.cat(self.waiting[j][:rows]), self.waiting[j][rows:]
            post, state = self.head.step(j, inputs, self.tokens[first + j : first + j + rows], cache, first + j)
            if j + 1 < self.head.depth:
                self.waiting[j + 1].extend(each_row(state))
            if j == 0:
                self.ready = post[-1:], state[-1:]

    def first_logits(self) -> Tensor:
        """Logits [1, vocab] of the first draft after the last observed slot."""
        assert self.ready is not None
        return self.head.logits(self.ready[0])

    def draft(self, k: int, choose: Choose) -> list[int]:
        """The next k tokens after those observed, by chained steps whose slots are rolled back at the end."""
        if k <= 0 or self.ready is None:
            return []
        lengths = [cache.length for cache in self.caches]
        last = len(self.tokens)
        post, state = self.ready
        drafts: list[int] = []
        for step in range(k):
            if step:
                index = step % self.head.depth
                post, state = self.head.step(index, state, drafts[-1:], self.caches[index], last - 1 + step)
            drafts.append(choose(self.head.logits(post)[0], last + 1 + step))
        for cache, length in zip(self.caches, lengths, strict=True):
            cache.rollback(length)
        return drafts
