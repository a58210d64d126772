# mypy: disable-error-code="import-untyped"
"""Triton kernels that multiply weights as the file packs them.

    layouts    how each kind lies on a device: `Slab`, `slab_of`; `apart`: of codes and scales in tensors of their own
    numbers    device functions that tiles share
    tiles…     values of a piece of a matrix, one function for each kind
    table      the function and the tile sizes of each kind
    programs   the product, and the values of a whole matrix
    programs_attention   attention: a row and a segment of the keys, all segments of a row;  attention   its way in
    programs_heads   queries, keys and values made ready and kept;  heads   their way in
    programs_delta   the gated delta rule;  delta   its way in
    programs_rows    norms, gates, routing, the sum of experts;  rows   their way in
    launch     the way in: `product`, `grouped`, `values`

`layouts` and `apart` need no triton; `launch` does, and is imported where `unavailable` says None.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from typing import Final

import torch

__all__ = ["OLDEST", "OLDEST_TRITON", "chosen", "launcher_missing", "unavailable"]

OLDEST: Final = (8, 0)
"""The first compute capability with bfloat16 matrix instructions."""

OLDEST_TRITON: Final = (3, 3)
"""The oldest that the tests were run with."""


@cache
def chosen(device: torch.device) -> bool:
    """Do kernels do what torch could do too? On a CPU they could in triton's interpreter alone: tests ask for that."""
    return device.type == "cuda" and unavailable(device) is None


def unavailable(device: torch.device) -> str | None:
    """Why the kernels cannot run on a device; None where they can.

    On a CPU they run in triton's interpreter, for tests: TRITON_INTERPRET=1 before they are imported.
    """
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.type == "cpu":
        return None if _interpreted() else "on a CPU they run in triton's interpreter alone (TRITON_INTERPRET=1)"
    if device.type != "cuda":
        return f"they are for CUDA, and this is {device.type}"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST_TRITON:
        return f"triton {triton.__version__} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    capability = torch.cuda.get_device_capability(device)
    if capability < OLDEST:
        return f"compute capability {'.'.join(map(str, capability))} is below {'.'.join(map(str, OLDEST))}"
    return launcher_missing()


@cache
def launcher_missing() -> str | None:
    """Why triton cannot launch anything: it builds its launcher with a C compiler when it is first asked for."""
    from triton.runtime import driver

    try:
        _ = driver.active.utils
    except Exception as error:  # whatever a compiler, a linker or a driver says
        return f"triton cannot build its launcher, which takes a C compiler and Python's headers: {error}"
    return None


def _interpreted() -> bool:
    """Were the kernels imported for the interpreter, or would they be? Asking must not import them."""
    loaded = sys.modules.get("mtptools.decoder.kernels.numbers")
    return os.environ.get("TRITON_INTERPRET") == "1" if loaded is None else bool(loaded.INTERPRETED)
