"""The layers of a checkpoint, built one at a time.

Of a layer, what every token needs is decoded when it is built; experts stay in the file and are decoded one by one, and
so are the embedding and the output matrix, a part at a time. Where kernels run, a layer's packed bytes go to the device
instead and are decoded there.
"""

from __future__ import annotations

from collections.abc import Sequence

from mtptools.decoder.build import Builder
from mtptools.decoder.build_v4 import V4Builder
from mtptools.decoder.hold import hold
from mtptools.decoder.packed import Packed, Weight
from mtptools.decoder.parts import Part, Scope

__all__ = ["StreamBuilder", "StreamV4Builder"]


class StreamBuilder(Builder):
    """Builds layers whose experts, embedding and output matrix stay in the file.

    on_device  matrices are packed on the device instead, all but an embedding that is nothing else
    """

    on_device = False

    def weight(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Weight:
        if self.on_device:
            return hold("resident", parts, shape, self.dtype, self.device, self.source.where)
        return self.apart(parts, shape) if len(shape) == 3 else self.new(parts, shape, self.dtype)

    def apart(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Packed:
        return Packed(tuple(parts), shape, self.dtype, self.device, self.source.where)

    def one(self, scope: Scope, role: str, rows: int, cols: int) -> Weight:
        read_by_row = role == "embed" and not self.hp.tie_embeddings
        if scope[0] == "top" and (read_by_row or not self.on_device):
            return self.apart(self.parts(scope, role), (rows, cols))
        return super().one(scope, role, rows, cols)

    def _own(self, scope: Scope, role: str, others: Sequence[Weight], rows: int = 0) -> Weight:
        if self.on_device and role != "head_embed":
            return super()._own(scope, role, others, rows)
        if not self.source.has(scope, role):
            return others[0]
        return self.apart(self.parts(scope, role), (rows or self.hp.vocab_size, self.hp.hidden_size))


class StreamV4Builder(StreamBuilder, V4Builder):
    """The same for DeepSeek-V4."""
