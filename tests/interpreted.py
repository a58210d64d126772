"""Kernels are decorated when they are imported: for triton's interpreter where there is no GPU, else to be compiled.

A process has them one way, so every test that runs kernels imports them here first.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

import pytest

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
