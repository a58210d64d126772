"""One checkpoint on its way through memory: a layer at a time, states in between."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

import torch
import xxhash
from torch import Tensor

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.best import LOGIT_BYTES, ROWS
from mtptools.decoder.estimate import unread
from mtptools.decoder.free import Free
from mtptools.decoder.kernels import unavailable
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.load import check_claimed, check_fits, check_known, family_wiring, head_of, source_of
from mtptools.decoder.memory import DTYPES
from mtptools.decoder.mtp_head import Head, HeadWiring
from mtptools.decoder.ops import HEAD_CHUNK, Arithmetic, exact_settings
from mtptools.decoder.resident import Resident
from mtptools.decoder.settings import read_settings
from mtptools.decoder.settings_v4 import read_v4
from mtptools.decoder.stream.outline import Outline, outline
from mtptools.decoder.stream.passages import Passages
from mtptools.decoder.stream.source import StreamBuilder, StreamV4Builder
from mtptools.decoder.stream.trunk_pass import FEED_ROWS, check_finite, embedded, through
from mtptools.decoder.trunk import States
from mtptools.errors import CorruptError

__all__ = ["Streamed", "identity"]

PRODUCTS: Final = 2
"""Results of the widest product that are in memory at a time."""

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
        self.arithmetic = Arithmetic.on(device) if exact else Free.on(device)
        with torch.inference_mode():
            self.outline = self._outline()
            self.builder = self._builder(ckpt)
            self.trunk = self.builder.trunk(layers=False)
        self.done, self.states = 0, torch.empty(0)

    def _builder(self, ckpt: Checkpoint) -> StreamBuilder:
        settings, source, dtype = read_settings(ckpt), source_of(ckpt), DTYPES[self.dtype]
        builder: StreamBuilder
        if ckpt.family.name == "deepseek4":
            builder = StreamV4Builder(source, ckpt.hparams, settings, read_v4(ckpt), self.device, dtype)
        else:
            builder = StreamBuilder(source, ckpt.hparams, settings, self.device, dtype)
        builder.arithmetic = self.arithmetic
        builder.on_device = self.packed
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

    @property
    def memory(self) -> int:
        """Bytes at a time: the largest layer, all states twice, and what products and choices take beside."""
        rows, hp = self.passages.n_rows, self.ckpt.hparams
        hidden, experts = hp.hidden_size, max(hp.n_experts_used, 1)
        longest = max(len(passage.ids) for passage in self.passages.all)
        within = max(min(rows, longest), min(rows, FEED_ROWS) * experts) * self.outline.widest * 4 * PRODUCTS
        choices = HEAD_CHUNK * (min(rows, ROWS) * LOGIT_BYTES + hidden * 4)
        states = rows * hidden * self.trunk.streams * 4
        return self.outline.most(self.packed) + self.held + states + max(within, choices)

    @property
    def held(self) -> int:
        """Bytes that are held from the first layer to the last: states, and an output matrix that is packed."""
        states = self.passages.n_rows * self.ckpt.hparams.hidden_size * self.trunk.streams * 4
        return states + (self.trunk.output.nbytes if isinstance(self.trunk.output, Resident) else 0)

    @torch.inference_mode()
    def begin(self) -> None:
        self.states, self.done = embedded(self.trunk, self.passages), 0

    @torch.inference_mode()
    def layer(self) -> None:
        """One layer more. Raises CorruptError where states stop being finite."""
        n = self.done
        if n + 1 < self.n_layers:
            self.outline.layers[n + 1].read_ahead()
        block = self.builder.block(("layer", n), self.builder.settings.layers[n])
        self.states = through(block, self.states, self.passages)
        check_finite(self.states, f"layer {n}", self.ckpt.path)
        self.done = n + 1

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
        return head_of(self.trunk, self.ckpt.hparams, builder, holder, self.wiring)

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
