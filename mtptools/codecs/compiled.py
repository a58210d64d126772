"""Functions compiled by numba, with the arithmetic of C's baseline: nothing fused, nothing reordered, the lock free.

Imported by the compiled twins alone: numba is an extra.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba

__all__ = ["compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is compiled is kept beside the module or in the user's cache; where there is room for neither, it is
    compiled anew by every process."""
    jit = partial(numba.njit, nogil=True, fastmath=False, error_model="numpy")
    try:
        done: Callable[..., Any] = jit(cache=True)(function)
    except RuntimeError:  # "cannot cache function: no locator available"
        done = jit()(function)
    return done
