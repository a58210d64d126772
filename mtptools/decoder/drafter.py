"""A head at work on one text: slots of the text are kept, drafted ones are forgotten again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mtptools.decoder.mtp_head import Choose, Head
from mtptools.decoder.ops import each_row

__all__ = ["Drafter"]


class Drafter:
    """tokens    tokens[i] is token i + 1 of the text: what slot i takes
    waiting   per layer, the states of slots it has not seen: they wait for tokens
    ready     (state for the output matrix, state to recycle) of layer 0 at the last slot, [1, …] each
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.used = 1 if head.wiring.recurrence == "first" else head.depth
        self.caches = [head.new_cache(j) for j in range(self.used)]
        self.seen = [0] * self.used
        self.tokens: list[int] = []
        self.waiting: list[list[Tensor]] = [[] for _ in range(self.used)]
        self.ready: tuple[Tensor, Tensor] | None = None

    def observe(self, states: Tensor, next_tokens: Sequence[int]) -> None:
        """Slots of the text: trunk states [rows, width] (already tapped) and, for each, the token that follows it."""
        self.tokens.extend(next_tokens)
        self.waiting[0].extend(each_row(states))
        for j in range(self.used):
            rows = len(self.tokens) - j - self.seen[j]
            if rows <= 0:
                continue
            inputs, self.waiting[j] = torch.cat(self.waiting[j][:rows]), self.waiting[j][rows:]
            post, state = self._slots(j, inputs, self.tokens)
            if j + 1 < self.used:
                self.waiting[j + 1].extend(each_row(state))
            if j == 0:
                self.ready = post[-1:], state[-1:]

    def _slots(self, j: int, inputs: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Layer j on its next slots. A rotary position is that of the token a slot takes, less one."""
        first = self.seen[j]
        self.seen[j] += inputs.shape[0]
        return self.head.draft_step(j, inputs, tokens[first + j : self.seen[j] + j], self.caches[j], first + j)

    def draft(self, k: int, choose: Choose) -> list[int]:
        """The next k tokens after those observed; the slots this takes are forgotten at the end."""
        if k <= 0 or self.ready is None:
            return []
        before = list(self.seen)
        for cache in self.caches:
            cache.start()
        last = len(self.tokens)
        post, state = self.ready
        fresh: list[Tensor] = []  # states of the layer before, of slots that took drafts
        drafts = [choose(self.head.logits(post)[0], last + 1)]
        for step in range(1, k):
            j = step % self.used
            if self.head.wiring.recurrence == "exact" and step < self.used:
                inputs = torch.cat([*self.waiting[j], *fresh])
                posts, states = self._slots(j, inputs, self.tokens + drafts)
                fresh = each_row(states)
                post, state = posts[-1:], states[-1:]
            else:
                self.seen[j] += 1
                post, state = self.head.draft_step(j, state, drafts[-1:], self.caches[j], last - 1 + step)
            drafts.append(choose(self.head.logits(post, j)[0], last + 1 + step))
        self.seen = before
        for cache, seen in zip(self.caches, before, strict=True):
            cache.rollback(seen)
        return drafts
