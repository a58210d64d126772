"""The main model: embeddings, layers, final norm, output matrix.

The residual stream is float32 whatever the weights' dtype; only matrix products round to that dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mtptools.decoder.cache import Cache, LayerCache
from mtptools.decoder.ops import Arithmetic, by_rows
from mtptools.decoder.packed import Weight
from mtptools.decoder.replay import Capture, Replays, cannot, on_cuda

__all__ = ["Block", "Ffn", "Layer", "Mixer", "States", "Trunk"]


class Mixer(Protocol):
    """What lets a token see those before it. Its cache is one that its own `new_cache` made."""

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        """(what, weight [N, K]) of every kind of product in it."""

    def new_cache(self) -> LayerCache: ...

    def forward(self, x: Tensor, cache: Any, position: int) -> Tensor:
        """x [rows, hidden] at positions position, position + 1 …; same shape back."""


class Ffn(Protocol):
    def matrices(self) -> Iterator[tuple[str, Weight]]: ...

    def forward(self, x: Tensor, ids: Sequence[int] = ()) -> Tensor: ...


class Layer(Protocol):
    """One decoder layer on the residual stream [rows, width]."""

    def matrices(self) -> Iterator[tuple[str, Weight]]: ...

    def new_cache(self) -> LayerCache: ...

    def mix(self, x: Tensor, cache: Any, position: int) -> Tensor:
        """Let tokens see those before them; same shape back."""

    def feed(self, x: Tensor, ids: Sequence[int]) -> Tensor:
        """What each token does by itself: rows may be of any positions, of several texts."""

    def forward(self, x: Tensor, cache: Any, position: int, ids: Sequence[int]) -> Tensor:
        """`mix`, then `feed`."""

    def shifted(self, by: float) -> Layer:
        """With `by` added to the factors of all its norms: a fault put in on purpose."""


@dataclass(frozen=True, slots=True)
class States:
    """Trunk states of consecutive positions, float32 [rows, width], before and after the final norm.

    Where the stream is several (`Trunk.streams`) they stand side by side in `pre`, and `post` is of their mix.
    """

    pre: Tensor
    post: Tensor

    def tap(self, which: str) -> Tensor:
        """ "post", or "pre" (also called "streams"). As wide as `pre`: a mix is repeated in place of each stream."""
        if which != "post":
            return self.pre
        return self.post.repeat(1, self.pre.shape[1] // self.post.shape[1])

    def part(self, start: int, stop: int) -> States:
        return States(self.pre[start:stop], self.post[start:stop])

    @staticmethod
    def joined(parts: Sequence[States]) -> States:
        return States(torch.cat([part.pre for part in parts]), torch.cat([part.post for part in parts]))


@dataclass(frozen=True, slots=True)
class Block:
    """A decoder layer with one stream. The norms are float32 [hidden], the factors themselves."""

    mixer: Mixer
    ffn: Ffn
    mixer_norm: Tensor
    ffn_norm: Tensor
    eps: float
    arithmetic: Arithmetic

    def matrices(self) -> Iterator[tuple[str, Weight]]:
        yield from self.mixer.matrices()
        yield from self.ffn.matrices()

    def new_cache(self) -> LayerCache:
        return self.mixer.new_cache()

    def shifted(self, by: float) -> Block:
        shifted = getattr(self.mixer, "shifted", None)
        mixer = self.mixer if shifted is None else shifted(by)
        return Block(mixer, self.ffn, self.mixer_norm + by, self.ffn_norm + by, self.eps, self.arithmetic)

    def forward(self, x: Tensor, cache: Any, position: int, ids: Sequence[int]) -> Tensor:
        """x [rows, hidden] at consecutive positions, of tokens `ids`; same shape back."""
        if not self.arithmetic.kernels:
            return self.feed(self.mix(x, cache, position), ids)
        found = self.mixer.forward(by_rows().norm(x, self.mixer_norm, self.eps), cache, position)
        x, normed = by_rows().norm_sum(x, found, self.ffn_norm, self.eps)
        return x + self.ffn.forward(normed, ids)

    def mix(self, x: Tensor, cache: Any, position: int) -> Tensor:
        normed = self.arithmetic.rms_norm(x, self.mixer_norm, self.eps)
        return x + self.mixer.forward(normed, cache, position)

    def feed(self, x: Tensor, ids: Sequence[int]) -> Tensor:
        return x + self.ffn.forward(self.arithmetic.rms_norm(x, self.ffn_norm, self.eps), ids)


@dataclass(frozen=True, slots=True)
class Trunk:
    """embed [vocab, hidden]; output [vocab, hidden] (the same tensor when tied); norm [hidden] float32.

    streams   residual streams side by side, each starting as the embedding
    collapse  mixes them down [rows, streams * hidden] -> [rows, hidden]; None where there is one
    replays   records passes of few rows and replays them, see `recording`; None: each is made anew
    """

    embed: Weight
    blocks: tuple[Layer, ...]
    norm: Tensor
    output: Weight
    eps: float
    arithmetic: Arithmetic
    streams: int = 1
    collapse: Callable[[Tensor], Tensor] | None = None
    replays: Replays | None = field(default=None, init=False, compare=False)

    def recording(self, captures: Callable[[torch.device], Capture] = on_cuda) -> Trunk:
        """The same with its short passes recorded, where they can be. A changed copy (`replace`) records nothing."""
        found, ops = replace(self), self.arithmetic
        if cannot(self.blocks, ops.device, kernels=ops.kernels) is None:
            object.__setattr__(found, "replays", Replays(self.blocks, captures))
        return found

    def new_cache(self) -> Cache:
        if self.replays is not None:
            return self.replays.cache(self._caches)
        return Cache(self._caches())

    def _caches(self) -> list[LayerCache]:
        return [block.new_cache() for block in self.blocks]

    def forward(self, ids: Sequence[int], cache: Cache) -> States:
        """Read `ids` after the cache's tokens; the states of their positions."""
        index = torch.tensor(ids, dtype=torch.long, device=self.norm.device)
        x = self.embed[index].float()
        if self.streams > 1:
            x = x.repeat(1, self.streams)

        def through(x: Tensor) -> Tensor:
            for block, layer in zip(self.blocks, cache.layers, strict=True):
                x = block.forward(x, layer, cache.length, ids)
            return x

        x = through(x) if self.replays is None else self.replays.run(x, cache, cache.length, through)
        cache.length += len(ids)
        mixed = x if self.collapse is None else self.collapse(x)
        return States(x, self.arithmetic.rms_norm(mixed, self.norm, self.eps))

    def logits(self, states: States) -> Tensor:
        """Float32 [rows, vocab]."""
        return self.arithmetic.logits(states.post, self.output)
