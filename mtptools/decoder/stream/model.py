"""One checkpoint on its way through memory: a layer at a time, states in between."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import torch
import xxhash
from torch import Tensor

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.estimate import unread
from mtptools.decoder.free import Free
from mtptools.decoder.kernels import unavailable
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.load import check_claimed, check_fits, check_known, family_wiring, head_of, source_of
from mtptools.decoder.memory import DTYPES
from mtptools.decoder.moe import Moe
from mtptools.decoder.mtp_head import Head, HeadWiring
from mtptools.decoder.ops import Arithmetic, exact_settings
from mtptools.decoder.settings import read_settings
from mtptools.decoder.settings_v4 import read_v4
from mtptools.decoder.stream.arithmetic import Blockwise
from mtptools.decoder.stream.coming import Awaited
from mtptools.decoder.stream.helpers import Coming, Helpers
from mtptools.decoder.stream.outline import Outline, outline
from mtptools.decoder.stream.passages import Passages
from mtptools.decoder.stream.read_ahead import announce, within
from mtptools.decoder.stream.room import held, memory
from mtptools.decoder.stream.source import StreamBuilder, StreamV4Builder
from mtptools.decoder.stream.trunk_pass import check_finite, embedded, through
from mtptools.decoder.trunk import Layer, States
from mtptools.errors import CorruptError

__all__ = ["Streamed", "identity"]

SAMPLES: Final = 32
SAMPLE: Final = 256
"""Bytes, at so many places, of every tensor that a checkpoint is known by: all of them would be another read."""


class Streamed:
    """A checkpoint and the states of all passages after `done` layers.

    packed  matrices are multiplied as they are packed; None: where the device is a GPU on which the kernels run
    exact  row by row, as decoding computes: the same bits. Else all rows at a time, which is far faster
    """

    def __init__(
        self,
        ckpt: Checkpoint,
        passages: Passages,
        *,
        head: Checkpoint | None = None,
        wiring: HeadWiring | None = None,
        device: torch.device,
        dtype: str = "float32",
        exact: bool = False,
        packed: bool | None = None,
    ) -> None:
        """Raises what `load_model` raises of names, shapes and settings, before anything large is read."""
        exact_settings()
        self.ckpt, self.head_ckpt, self.passages, self.dtype, self.exact = ckpt, head, passages, dtype, exact
        self.device = device
        self.packed = device.type == "cuda" and unavailable(device) is None if packed is None else packed
        self.wiring = wiring or family_wiring(head or ckpt)
        free = Blockwise if device.type == "cpu" else Free
        self.arithmetic = Arithmetic.on(device) if exact else free.on(device)
        with torch.inference_mode():
            self.outline = self._outline()
            self.helpers = self._helpers()
            self.builder = self._builder(ckpt)
            self.trunk = self.builder.trunk(layers=False)
        self.done, self.states = 0, torch.empty(0)
        self._next: tuple[int, Layer] | None = None

    def _builder(self, ckpt: Checkpoint) -> StreamBuilder:
        settings, source, dtype = read_settings(ckpt), source_of(ckpt), DTYPES[self.dtype]
        builder: StreamBuilder
        if ckpt.family.name == "deepseek4":
            builder = StreamV4Builder(source, ckpt.hparams, settings, read_v4(ckpt), self.device, dtype)
        else:
            builder = StreamBuilder(source, ckpt.hparams, settings, self.device, dtype)
        builder.arithmetic = self.arithmetic
        builder.on_device, builder.helpers = self.packed, self.helpers
        return builder

    def _outline(self) -> Outline:
        dtype, beside = DTYPES[self.dtype], None
        check_known(self.ckpt)
        if self.head_ckpt is not None:
            check_known(self.head_ckpt)
            check_fits(self.ckpt.hparams, self.head_ckpt)
            beside = (self.head_ckpt, unread(self.head_ckpt, dtype))
        dry = unread(self.ckpt, dtype)
        found = outline(self.ckpt, dry, beside, tuple(KINDS) if self.packed else ())
        check_claimed(dry.source, "layer")
        check_claimed(dry.source if beside is None else beside[1].source, "head")
        return found

    @property
    def n_layers(self) -> int:
        return len(self.outline.layers)

    def _helpers(self) -> Helpers | None:
        """Who decodes matrices before they are needed; None where they are not decoded here."""
        if self.packed or self.device.type != "cpu":
            return None
        room = self.outline.largest
        return Helpers(room, self.outline.most(packed=False) + room)

    def at_work(self) -> AbstractContextManager[object]:
        """While this is entered, matrices are decoded before they are needed, by threads that end with it."""
        return nullcontext() if self.helpers is None else self.helpers

    @property
    def memory(self) -> int:
        """Bytes at a time."""
        return memory(self)

    @property
    def held(self) -> int:
        """Bytes of these that another model beside it leaves no room for."""
        return held(self)

    @torch.inference_mode()
    def begin(self) -> None:
        self.states, self.done = embedded(self.trunk, self.passages), 0

    @torch.inference_mode()
    def layer(self, *, last: bool = True) -> None:
        """One layer more, and, unless it is the last, the beginning of the next one.

        Raises CorruptError where states stop being finite.
        """
        n = self.done
        block = self._block(n)
        if not last and self.helpers is not None and not _has_experts(block):
            self._next = n + 1, self._block(n + 1)
        elif not last:  # which experts are met is known late, and they are most of the layer: they go first
            announce(within(self.outline.layers[n + 1].blobs()))
        self.states = through(block, self.states, self.passages)
        self._forget(block)
        check_finite(self.states, f"layer {n}", self.ckpt.path)
        self.done = n + 1

    def _block(self, n: int) -> Layer:
        """A layer whose matrices are on their way."""
        if self._next is not None and self._next[0] == n:
            block, self._next = self._next[1], None
            return block
        if n + 1 < self.n_layers:
            announce(self.outline.layers[n + 1].small())
        block = self.builder.block(("layer", n), self.builder.settings.layers[n])
        if self.helpers is not None:
            self.helpers.expect(_awaited(block))
        return block

    def _forget(self, block: Layer) -> None:
        if self.helpers is not None:
            self.helpers.forget(_awaited(block))

    @torch.inference_mode()
    def ended(self) -> States:
        """The states before and after the final norm."""
        mixed = self.states if self.trunk.collapse is None else self.trunk.collapse(self.states)
        return States(self.states, self.arithmetic.rms_norm(mixed, self.trunk.norm, self.trunk.eps))

    @torch.inference_mode()
    def head(self) -> Head | None:
        """The head, None without one."""
        holder = self.head_ckpt or self.ckpt
        builder = self.builder if self.head_ckpt is None else self._builder(holder)
        head = head_of(self.trunk, self.ckpt.hparams, builder, holder, self.wiring)
        if head is not None and self.helpers is not None:
            self.helpers.expect([one for layer in head.layers for one in _awaited(layer.block)])
        return head

    def run(self) -> dict[str, Any]:
        """What states depend on."""
        exact = f"exact, {self.device.type}{', packed' if self.packed else ''}"
        return {
            "checkpoint": identity(self.ckpt),
            "text": self.passages.digest(),
            "dtype": self.dtype,
            "arithmetic": exact if self.exact else "free",
            "settings": hashlib.sha256(repr(self.computed).encode()).hexdigest(),
        }

    @property
    def computed(self) -> tuple[object, ...]:
        """What states depend on beside the tensors: sizes, positions, epsilons, routing …"""
        v4 = self.builder.v4 if isinstance(self.builder, StreamV4Builder) else None
        return self.builder.settings, v4, replace(self.ckpt.hparams, depth=0, context_length=0)

    def keep_states(self, states: Tensor, done: int) -> None:
        """Go on from states after `done` layers. Raises CorruptError when they are of another shape."""
        shape = (self.passages.n_rows, self.ckpt.hparams.hidden_size * self.trunk.streams)
        if tuple(states.shape) != shape:
            raise CorruptError(
                f"states {list(states.shape)} of {list(shape)}",
                where=self.ckpt.path,
                hint="the file of states is of something else: delete it",
            )
        self.states, self.done = states.to(self.device), done


def _has_experts(block: Layer) -> bool:
    return isinstance(getattr(block, "ffn", None), Moe)


def _awaited(block: Layer) -> list[Coming]:
    """A layer's matrices that are decoded as a whole, in the order of their use."""
    return [weight.coming for _, weight in block.matrices() if isinstance(weight, Awaited)]


def identity(ckpt: Checkpoint) -> str:
    """A digest of names, shapes, types and some bytes of every tensor: the same on any machine."""
    digest = xxhash.xxh3_128()
    for name in sorted(ckpt):
        tensor = ckpt[name]
        digest.update(repr((name, tensor.shape, tensor.codec)).encode())
        last = max(tensor.nbytes - SAMPLE, 0)
        for at in sorted({last * n // (SAMPLES - 1) for n in range(SAMPLES)}):
            digest.update(tensor.read(at, min(SAMPLE, tensor.nbytes - at)))
    return digest.hexdigest()
