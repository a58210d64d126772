"""How much memory a model takes, found without loading it: the model is built on torch's device without memory.

The same builder that loads makes the same objects; its matrices stay unread `Packed` ones, its other tensors are
empty. So what is fused, shared, widened or computed is counted as it will be held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import ismethod
from math import prod
from typing import Any, Final

import torch

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.build import Builder
from mtptools.decoder.build_v4 import V4Builder
from mtptools.decoder.cache import CHUNK, KVCache, RecurrentCache
from mtptools.decoder.compressed import SparseCache
from mtptools.decoder.compressor import WindowCache
from mtptools.decoder.mtp_head import HeadLayer
from mtptools.decoder.packed import Packed, Weight
from mtptools.decoder.packing import resident
from mtptools.decoder.parts import Form, Part, Scope, WeightSource, check_fit
from mtptools.decoder.rope import Rope
from mtptools.decoder.settings import read_settings
from mtptools.decoder.settings_v4 import read_v4
from mtptools.decoder.trunk import Trunk
from mtptools.decoder.weights_gguf import GgufWeights
from mtptools.decoder.weights_hf import HfWeights
from mtptools.gguf_blocks import gguf_blocks, head_blocks

__all__ = ["Estimate", "Size", "Unread", "cache_bytes", "estimate", "head_layers", "sizes_of", "unread"]

_NOWHERE: Final = torch.device("meta")
_HOST: Final = torch.device("cpu")

_SAMPLED: Final = 32
"""Rows that are compared to tell whether a head's own matrix is a copy of the trunk's; loading compares them all."""


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of one piece of a model.

    fixed    vectors, routers and what else is always decoded
    loaded   its matrices, decoded in the model's dtype
    packed   its matrices on a device that multiplies with packed bytes; decoded where a type has no kernel
    largest  its largest matrix, decoded; of a stack, one;  copied  the same, packed
    widest   rows of the matrix that has most: values in a row of its product
    stacked  stacks of matrices (experts), decoded; in `loaded` too;  stacks  the same, packed; in `packed` too
    """

    fixed: int = 0
    loaded: int = 0
    packed: int = 0
    largest: int = 0
    copied: int = 0
    widest: int = 0
    stacked: int = 0
    stacks: int = 0

    def of(self, mode: str) -> int:
        """Bytes on the device when matrices are "loaded", "resident", "stored" in the file, or "offloaded"."""
        return self.fixed + {"loaded": self.loaded, "resident": self.packed}.get(mode, 0)

    def __add__(self, other: Size) -> Size:
        return Size(
            self.fixed + other.fixed,
            self.loaded + other.loaded,
            self.packed + other.packed,
            max(self.largest, other.largest),
            max(self.copied, other.copied),
            max(self.widest, other.widest),
            self.stacked + other.stacked,
            self.stacks + other.stacks,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """embed (nothing where it is the output matrix); layers, one by one; output, with the final norm; head.

    caches   empty ones, of each layer;  ropes  whose tables grow with the text
    hidden   of the whole residual, streams side by side;  experts  used per token;  itemsize  of the model's dtype
    """

    embed: Size
    layers: tuple[Size, ...]
    output: Size
    head: Size
    caches: tuple[Any, ...]
    head_caches: tuple[Any, ...]
    ropes: tuple[Rope, ...]
    hidden: int
    vocab: int
    experts: int
    itemsize: int

    @property
    def whole(self) -> Size:
        return sum(self.layers, self.embed + self.output + self.head)

    def layer_cache(self, layer: int, tokens: int, k: int) -> int:
        """Bytes that a trunk layer remembers of a text, with snapshots enough to take k drafts back."""
        return cache_bytes(self.caches[layer], tokens, k + 2)

    def head_cache(self, tokens: int, k: int) -> int:
        return sum(cache_bytes(one, tokens, k + 2) for one in self.head_caches)

    def tables(self, tokens: int) -> int:
        """Bytes of cosines and sines."""
        return sum(4 * rope.dim * -(-tokens // CHUNK) * CHUNK for rope in self.ropes)


def estimate(ckpt: Checkpoint, head: Checkpoint | None, dtype: torch.dtype, kinds: Collection[str] = ()) -> Estimate:
    """What a trunk and its head take; `head` is another checkpoint to take it from.

    kinds  of packed weights that the device has kernels for

    Raises what building a model raises: MissingRoleError, CorruptError, InputError.
    """
    builder = unread(ckpt, dtype)
    with torch.inference_mode():
        trunk = builder.trunk()
        holder, loader = (ckpt, builder) if head is None else (head, unread(head, dtype))
        layers = head_layers(trunk, loader, holder)
    seen: dict[int, object] = {}

    def held(*roots: object) -> Size:
        return sizes_of(roots, seen, kinds)

    hp = ckpt.hparams
    output = held(trunk.norm, trunk.output, trunk.collapse)  # before the embedding: that may be the same
    return Estimate(
        held(trunk.embed),
        tuple(held(block) for block in trunk.blocks),
        output,
        held(*layers),
        tuple(block.new_cache() for block in trunk.blocks),
        tuple(layer.block.new_cache() for layer in layers),
        tuple(one for one in seen.values() if isinstance(one, Rope)),
        hp.hidden_size * trunk.streams,
        hp.vocab_size,
        hp.n_experts_used,
        dtype.itemsize,
    )


def cache_bytes(cache: object, tokens: int, states: int = 1) -> int:
    """Bytes of one layer's memory after `tokens` tokens; of a recurrent one, of so many states."""
    if isinstance(cache, KVCache):
        return -(-tokens // CHUNK) * prod(cache.shape) * cache.dtype.itemsize
    if isinstance(cache, RecurrentCache):
        return states * (cache.state.conv.nbytes + cache.state.memory.nbytes)
    if isinstance(cache, WindowCache):
        waiting = tokens - max(0, tokens // cache.ratio - cache.behind) * cache.ratio
        width = 2 * cache.keys.key_dim * (1 + cache.behind)
        return cache_bytes(cache.keys, tokens // cache.ratio) + waiting * width * 4
    if isinstance(cache, SparseCache):
        return sum(cache_bytes(part, tokens) for part in cache.parts)
    raise TypeError(f"the size of a {type(cache).__name__} is not known")


class Unread(Builder):
    """Builds without reading: matrices stay as they are stored, other tensors have a shape and no values."""

    def new(self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        check_fit(parts, (prod(shape[:-1]), shape[-1]), self.source.where)
        return torch.empty(shape, dtype=dtype, device=self.device if shape[0] == 1 else _NOWHERE)

    def weight(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Weight:
        check_fit(parts, (prod(shape[:-1]), shape[-1]), self.source.where)
        return Packed(tuple(parts), shape, self.dtype, _NOWHERE, self.source.where)

    def _own(self, scope: Scope, role: str, others: Sequence[Weight], rows: int = 0) -> Weight:
        own = super()._own(scope, role, others, rows)
        return next((other for other in others if other is own or _alike(own, other)), own)


class UnreadV4(Unread, V4Builder):
    pass


def unread(ckpt: Checkpoint, dtype: torch.dtype) -> Builder:
    """A builder that reads nothing large. Raises what building raises of names and shapes."""
    source: WeightSource = GgufWeights(ckpt) if ckpt.dialect == "gguf" else HfWeights(ckpt)
    settings = read_settings(ckpt)
    builder: Builder
    if ckpt.family.name == "deepseek4":
        builder = UnreadV4(source, ckpt.hparams, settings, read_v4(ckpt), _NOWHERE, dtype)
    else:
        builder = Unread(source, ckpt.hparams, settings, _NOWHERE, dtype)
    builder.device = _HOST  # of vectors: they are small, and torch cannot repeat one that has no memory
    return builder


def head_layers(trunk: Trunk, builder: Builder, ckpt: Checkpoint) -> list[HeadLayer]:
    # As in loading: a sidecar GGUF may bring its own embedding and output matrix.
    alone = ckpt.dialect == "gguf" and set(gguf_blocks(ckpt)) == set(head_blocks(ckpt))
    seen = builder.beside(trunk) if alone and builder.source.head_depth else trunk
    layers: list[HeadLayer] = []
    for depth in range(builder.source.head_depth):
        layers.append(builder.head_layer(("head", depth), seen, layers))
    return layers


def _alike(ours: Weight, theirs: Weight) -> bool:
    """Do some rows, the first and the last among them, have the same values?"""
    if not (isinstance(ours, Packed) and isinstance(theirs, Packed)) or ours.shape != theirs.shape:
        return False
    last = ours.shape[0] - 1
    rows = torch.tensor(sorted({last * i // _SAMPLED for i in range(_SAMPLED + 1)}))
    pair = [Packed(one.parts, one.shape, one.dtype, _HOST, one.where)[rows] for one in (ours, theirs)]
    return torch.equal(*pair)


def sizes_of(roots: Sequence[object], seen: dict[int, object], kinds: Collection[str]) -> Size:
    total = Size()
    for one in _weights(roots, seen):
        if isinstance(one, torch.Tensor):
            total += Size(fixed=one.nbytes)
            continue
        loaded = one.numel() * one.dtype.itemsize
        packed = sum(part.n_rows * _row_bytes(part, one.dtype, kinds) for part in one.parts)
        n = prod(one.shape[:-2])
        stacked = (loaded, packed) if len(one.shape) == 3 else (0, 0)
        total += Size(0, loaded, packed, loaded // n, packed // n, one.shape[-2], *stacked)
    return total


def _row_bytes(part: Part, dtype: torch.dtype, kinds: Collection[str]) -> int:
    """Of a part in a packed weight: its own where a kernel reads its type and they are fewer, else of values."""
    tensor, values = part.tensor, part.n_cols * dtype.itemsize
    if part.value is not None or not kinds:
        return values
    if part.codes is not None:  # scales stand beside them, in a form of the kernel's: a row is made to see
        key = part.codes.form, part.n_cols
        if key not in _ROWS:
            row = replace(part, stop=part.start + 1, to_row=None, take=None)
            _ROWS[key] = resident([row], (1, part.n_cols), dtype, _HOST, tensor.name).nbytes
        return _ROWS[key]
    return min(tensor.row_bytes, values) if tensor.stored and tensor.codec in kinds else values


_ROWS: Final[dict[tuple[Form, int], int]] = {}
"""Bytes of a row of so many values, in a form with scales beside the codes."""


def _weights(roots: Sequence[object], seen: dict[int, object]) -> Iterator[torch.Tensor | Packed]:
    """Every tensor and matrix that objects of the decoder hold, once."""
    stack = list(roots)
    while stack:
        one = stack.pop()
        if ismethod(one):  # a trunk's `collapse`
            one = one.__self__
        if one is None or id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, torch.Tensor | Packed):
            yield one
        elif isinstance(one, tuple | list):
            stack += one
        elif is_dataclass(one):
            stack += [getattr(one, field.name) for field in fields(one)]
        elif type(one).__module__.startswith("mtptools.decoder."):
            stack += vars(one).values()
