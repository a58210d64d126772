"""The layers of a checkpoint, built one at a time.

Of a layer, what every token needs is decoded when it is built; experts stay in the file and are decoded one by one, and
so are the embedding and the output matrix, a part at a time. Where kernels run, a layer's packed bytes go to the device
instead and are decoded there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from mtptools.decoder.build import Builder
from mtptools.decoder.build_v4 import V4Builder
from mtptools.decoder.hold import hold
from mtptools.decoder.packed import Packed, Weight
from mtptools.decoder.parts import Part, Scope, check_fit

__all__ = ["DryBuilder", "DryV4Builder", "StreamBuilder", "StreamV4Builder"]


class StreamBuilder(Builder):
    """Builds layers whose experts, embedding and output matrix stay in the file.

    on_device  matrices are packed on the device instead, all but the embedding
    """

    on_device = False

    def weight(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Weight:
        if self.on_device:
            return hold("resident", parts, shape, self.dtype, self.device, self.source.where)
        return self.apart(parts, shape) if len(shape) == 3 else self.new(parts, shape, self.dtype)

    def apart(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Packed:
        return Packed(tuple(parts), shape, self.dtype, self.device, self.source.where)

    def one(self, scope: Scope, role: str, rows: int, cols: int) -> Weight:
        if scope[0] == "top" and (role == "embed" or not self.on_device):
            return self.apart(self.parts(scope, role), (rows, cols))
        return super().one(scope, role, rows, cols)

    def _own(self, scope: Scope, role: str, others: Sequence[Weight], rows: int = 0) -> Weight:
        if not self.source.has(scope, role):
            return others[0]
        parts, shape = self.parts(scope, role), (rows or self.hp.vocab_size, self.hp.hidden_size)
        return self.weight(parts, shape) if self.on_device else self.apart(parts, shape)


class StreamV4Builder(StreamBuilder, V4Builder):
    """The same for DeepSeek-V4."""


class DryBuilder(StreamBuilder):
    """Builds nothing: says which tensors layers are made of, and what they will take.

    values  of everything that `StreamBuilder` would decode
    single  the largest matrix of a stack, in values: what is decoded at a time on top
    widest  the largest matrix of all;  tallest  values of a row of the widest product
    """

    values = 0
    single = 0
    widest = 0
    tallest = 0

    def new(self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        check_fit(parts, (prod(shape[:-1]), shape[-1]), self.source.where)
        self.values += prod(shape)
        self.tallest = max(self.tallest, shape[-2])
        self.widest = max(self.widest, prod(shape[-2:]))
        return torch.zeros((), dtype=dtype).expand(shape)

    def apart(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Packed:
        check_fit(parts, (prod(shape[:-1]), shape[-1]), self.source.where)
        if len(shape) == 3:
            self.tallest = max(self.tallest, shape[-2] * self.hp.n_experts_used)
            self.single = max(self.single, prod(shape[-2:]))
            self.widest = max(self.widest, self.single)
        return super().apart(parts, shape)


class DryV4Builder(DryBuilder, StreamV4Builder):
    """The same for DeepSeek-V4."""
