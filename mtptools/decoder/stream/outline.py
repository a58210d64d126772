"""What every layer of a checkpoint is made of, found before anything is decoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.build import Builder
from mtptools.decoder.estimate import Size, cache_bytes, head_layers, sizes_of
from mtptools.decoder.parts import Scope
from mtptools.tensors import NOWHERE, Blob, Tensor

__all__ = ["Outline", "Stage", "outline", "same_bytes"]

COMPARED = 8 << 20
"""Bytes of two tensors that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One layer, or a part beside the layers.

    tensors  what it is made of, by name;  size  what it takes in memory;  cache  an empty one of a layer
    """

    tensors: tuple[Tensor, ...]
    size: Size = Size()  # noqa: RUF009  # frozen
    cache: object = None

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def blobs(self) -> Iterable[Blob]:
        return (blob for tensor in self.tensors for blob in tensor.blobs if blob.path != NOWHERE)

    def small(self) -> Iterator[Blob]:
        """Blobs of vectors, which are decoded when a layer is built."""
        return (blob for tensor in self.tensors if tensor.n_rows == 1 for blob in tensor.blobs if blob.path != NOWHERE)


@dataclass(frozen=True, slots=True)
class Outline:
    """ends: embedding, final norm and output matrix; layers of the trunk; head: all of it, empty without one."""

    ends: Stage
    layers: tuple[Stage, ...]
    head: Stage

    @property
    def nbytes(self) -> int:
        return self.ends.nbytes + self.head.nbytes + sum(stage.nbytes for stage in self.layers)

    @property
    def widest(self) -> int:
        """Values of a row of the widest product within a layer."""
        return max(stage.size.widest for stage in (*self.layers, self.head))

    @property
    def largest(self) -> int:
        """Bytes of the largest matrix of a layer, decoded; of a stack, one."""
        return max(stage.size.largest for stage in (*self.layers, self.head))

    @property
    def coming(self) -> int:
        """Bytes of the next layer that are there before this one is done: vectors, and the largest matrix."""
        return self.largest + max(stage.size.fixed for stage in (*self.layers, self.head))

    def cached(self, tokens: int) -> int:
        """Bytes that a layer remembers of a text."""
        return max(cache_bytes(stage.cache, tokens) for stage in self.layers)

    def most(self, packed: bool) -> int:
        """Bytes of the largest layer: packed and one matrix of it decoded, or decoded and of its stacks one matrix."""
        sizes = [stage.size for stage in (*self.layers, self.head)]
        if packed:
            return max(size.fixed + size.packed + size.largest for size in sizes)
        return max(size.fixed + size.loaded - size.stacked + (size.largest if size.stacked else 0) for size in sizes)


def outline(
    ckpt: Checkpoint, builder: Builder, head: tuple[Checkpoint, Builder] | None, kinds: Collection[str] = ()
) -> Outline:
    """Builders that read nothing; head: where it is in another checkpoint; kinds: of weights that stay packed.

    Raises what building raises of names and shapes.
    """
    seen: dict[int, object] = {}

    def stage(holder: Checkpoint, maker: Builder, before: set[str], *built: object) -> Stage:
        names = sorted(name for name in maker.source.used - before if name in holder)
        return Stage(tuple(holder[name] for name in names), sizes_of(built, seen, kinds))

    trunk = builder.trunk(layers=False)
    ends = stage(ckpt, builder, set(), trunk)
    layers = []
    for n, kind in enumerate(builder.settings.layers):
        used = set(builder.source.used)
        scope: Scope = ("layer", n)
        block = builder.block(scope, kind)
        layers.append(replace(stage(ckpt, builder, used, block), cache=block.new_cache()))
    holder, maker = (ckpt, builder) if head is None else head
    used = set(maker.source.used) if head is None else set()
    made = head_layers(trunk, maker, holder)
    inner = [replace(layer, embed=trunk.embed, output=trunk.output) for layer in made]  # not in one piece
    return Outline(ends, tuple(layers), stage(holder, maker, used, *inner))


def same_bytes(a: Stage, b: Stage) -> bool:
    """Are two stages made of the same tensors? Both are read, up to the first difference, unless they are one file."""
    if len(a.tensors) != len(b.tensors):
        return False
    pairs = list(zip(a.tensors, b.tensors, strict=True))
    if any((x.name, x.shape, x.codec, x.nbytes) != (y.name, y.shape, y.codec, y.nbytes) for x, y in pairs):
        return False
    return all(_one_place(x, y) or _equal(x, y) for x, y in pairs)


def _one_place(a: Tensor, b: Tensor) -> bool:
    if len(a.blobs) != len(b.blobs) or not a.stored or not b.stored:
        return False
    return all(
        (x.offset, x.nbytes) == (y.offset, y.nbytes) and x.path.samefile(y.path)
        for x, y in zip(a.blobs, b.blobs, strict=True)
    )


def _equal(a: Tensor, b: Tensor) -> bool:
    return all(
        a.read(at, min(COMPARED, a.nbytes - at)) == b.read(at, min(COMPARED, a.nbytes - at))
        for at in range(0, a.nbytes, COMPARED)
    )
