"""Kernels are decorated when they are imported: for triton's interpreter where there is no GPU, else to be compiled.

A process has them one way, so every test that runs kernels imports them here first.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from torch import Tensor, dtype

HAVE: Final = all(find_spec(name) is not None for name in ("torch", "triton"))


def import_kernels() -> None:
    """Only where `HAVE`. The environment of this process, and of those it starts, stays as it is."""
    import torch

    import_module("triton")  # its own library is not to be interpreted
    with pytest.MonkeyPatch.context() as patch:
        if not torch.cuda.is_available():
            patch.setenv("TRITON_INTERPRET", "1")
        for name in ("attention", "rows", "heads", "delta"):
            import_module(f"mtptools.decoder.kernels.{name}")


class Summed:
    """What `resident.floats` gives, without the interpreter, where a test is of something else: each row by itself."""

    def __init__(self, values: Tensor) -> None:
        self.values = values.float()

    def product(self, x: Tensor, dtype: dtype) -> Tensor:
        return (x.unsqueeze(1) * self.values).sum(-1)

    def by_head(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(2) * self.values).sum(-1)
