"""What every layer of a checkpoint is made of, found before anything is decoded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.parts import Scope
from mtptools.decoder.stream.source import DryBuilder
from mtptools.tensors import NOWHERE, Blob, Tensor

__all__ = ["Outline", "Stage", "outline", "same_bytes"]

COMPARED = 8 << 20
"""Bytes of two tensors that are compared at a time."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One layer, or a part beside the layers.

    tensors  what it is made of, by name;  values  decoded when it is built;  single  decoded at a time on top
    widest   values of its largest matrix;  tallest  of a row of its widest product
    """

    tensors: tuple[Tensor, ...]
    values: int
    single: int = 0
    widest: int = 0
    tallest: int = 0

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def blobs(self) -> Iterable[Blob]:
        return (blob for tensor in self.tensors for blob in tensor.blobs if blob.path != NOWHERE)

    def read_ahead(self) -> None:
        """Tell the system that these bytes are next."""
        if not hasattr(os, "posix_fadvise"):
            return
        for blob in self.blobs():
            with open(blob.path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), blob.offset, blob.nbytes, os.POSIX_FADV_WILLNEED)


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
    def tallest(self) -> int:
        """Values of a row of the widest product within a layer."""
        return max(stage.tallest for stage in (*self.layers, self.head))

    def most(self, size: int, packed: bool) -> int:
        """Bytes in memory at a time, of the largest layer: decoded to `size` each, or packed and one matrix decoded."""
        if packed:
            return max(stage.nbytes + stage.widest * size for stage in (*self.layers, self.head))
        return max(stage.values + stage.single for stage in (*self.layers, self.head)) * size


def outline(ckpt: Checkpoint, builder: DryBuilder, head: tuple[Checkpoint, DryBuilder] | None) -> Outline:
    """head: where it is in another checkpoint. Raises what building raises of names and shapes."""

    def stage(holder: Checkpoint, maker: DryBuilder, before: set[str]) -> Stage:
        names = sorted(maker.source.used - before)
        tensors = tuple(holder[name] for name in names if name in holder)
        found = Stage(tensors, maker.values, maker.single, maker.widest, maker.tallest)
        maker.values = maker.single = maker.widest = maker.tallest = 0
        return found

    used: set[str] = set()
    trunk = builder.trunk(layers=False)
    ends = stage(ckpt, builder, used)
    layers = []
    for n, kind in enumerate(builder.settings.layers):
        used = set(builder.source.used)
        scope: Scope = ("layer", n)
        builder.block(scope, kind)
        layers.append(stage(ckpt, builder, used))
    holder, maker = (ckpt, builder) if head is None else head
    used = set(maker.source.used) if head is None else set()
    for d in range(maker.source.head_depth):
        maker.head_layer(("head", d), trunk, [])
    return Outline(ends, tuple(layers), stage(holder, maker, used))


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
