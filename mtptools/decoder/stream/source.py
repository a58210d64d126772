"""The layers of a checkpoint, built one at a time.

Matrices stay in the file until they are multiplied: those of a layer are then held, experts are decoded one by one, and
the output matrix a part at a time; on a CPU all of it by `Helpers`, before it is needed. Where kernels run, a layer's
packed bytes go to the device instead and are decoded there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mtptools.decoder.build import Builder
from mtptools.decoder.build_v4 import V4Builder
from mtptools.decoder.hold import hold
from mtptools.decoder.moe import Moe
from mtptools.decoder.packed import Packed, Weight
from mtptools.decoder.parts import Part, Scope, check_fit
from mtptools.decoder.stream.coming import Awaited, Experts, Vocabulary
from mtptools.decoder.stream.experts import Routed
from mtptools.decoder.stream.helpers import Helpers

__all__ = ["StreamBuilder", "StreamV4Builder"]


class StreamBuilder(Builder):
    """Builds layers whose experts, embedding and output matrix stay in the file.

    on_device  matrices are packed on the device instead, all but an embedding that is nothing else
    helpers    decode matrices before they are needed; None: they are decoded when a layer is built
    """

    on_device = False
    helpers: Helpers | None = None

    def weight(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Weight:
        if self.on_device:
            return hold("resident", parts, shape, self.dtype, self.device, self.source.where)
        if self.helpers is None or 0 in shape:
            return self.apart(parts, shape) if len(shape) == 3 else self.new(parts, shape, self.dtype)
        check_fit(parts, (prod(shape[:-1]), shape[-1]), self.source.where)
        kind = Experts if len(shape) == 3 else Awaited
        return kind.of(self.apart(parts, shape), self.helpers)

    def moe(self, scope: Scope) -> Moe:
        moe = super().moe(scope)
        return moe if self.helpers is None else Routed(moe.weights, moe.routing, moe.arithmetic)

    def vocabulary_rows(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Packed:
        """An embedding or output matrix."""
        matrix = self.apart(parts, shape)
        return matrix if self.helpers is None else Vocabulary.of(matrix, self.helpers)

    def apart(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Packed:
        return Packed(tuple(parts), shape, self.dtype, self.device, self.source.where)

    def one(self, scope: Scope, role: str, rows: int, cols: int) -> Weight:
        read_by_row = role == "embed" and not self.hp.tie_embeddings
        if scope[0] == "top" and (read_by_row or not self.on_device):
            return self.vocabulary_rows(self.parts(scope, role), (rows, cols))
        return super().one(scope, role, rows, cols)

    def _own(self, scope: Scope, role: str, others: Sequence[Weight], rows: int = 0) -> Weight:
        if self.on_device and role != "head_embed":
            return super()._own(scope, role, others, rows)
        if not self.source.has(scope, role):
            return others[0]
        return self.vocabulary_rows(self.parts(scope, role), (rows or self.hp.vocab_size, self.hp.hidden_size))


class StreamV4Builder(StreamBuilder, V4Builder):
    """The same for DeepSeek-V4."""
