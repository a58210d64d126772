"""A loaded model: trunk, and a head if there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from mtptools.decoder.mtp_head import Head
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.replay import Capture, on_cuda
from mtptools.decoder.trunk import Trunk
from mtptools.errors import MissingHeadError
from mtptools.hparams import HParams

__all__ = ["Model", "recording"]


@dataclass(frozen=True)
class Model:
    """`declared` is the depth the configuration promises; without a head it tells stripped from lost."""

    where: object
    hparams: HParams
    trunk: Trunk
    head: Head | None
    declared: int
    dtype: torch.dtype
    arithmetic: Arithmetic

    def require_head(self) -> Head:
        """The head. Raises MissingHeadError that says whether one was promised."""
        if self.head is None:
            raise MissingHeadError.to_draft_with(self.where, self.declared)
        return self.head

    def with_head(self, head: Head) -> Model:
        return replace(self, head=head)


def recording(model: Model, captures: Callable[[torch.device], Capture] = on_cuda) -> Model:
    """The same with short passes of the trunk and of the head recorded, where they can be: see `replay.py`."""
    head = model.head if model.head is None else model.head.recording(captures)
    return replace(model, trunk=model.trunk.recording(captures), head=head)
