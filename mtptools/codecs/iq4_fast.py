"""`iq4`'s search compiled by numba: the same bits, several times as fast.

Groups are worked on `LANES` at a time, so that the processor's vector lanes are groups: each group's sums still add one
value after the other. Nothing is fused and nothing reordered, and the interpreter's lock is free.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mtptools.codecs.compiled import compiled

__all__ = ["attempts"]

LANES: Final = 64
_ZERO = np.float32(0)


@compiled
def attempts(x: Any, w: Any, doubled: Any, nearest: Any) -> Any:
    tries, groups = doubled.shape
    n = x.shape[0]
    modulo = np.uint32(len(nearest) - 1)
    scales = np.empty(groups, np.float32)
    xs = np.empty((n, LANES), np.float32)
    ws = np.empty((n, LANES), np.float32)
    at = np.empty((n, LANES), np.int32)
    sum_xq = np.empty(LANES, np.float32)
    sum_qq = np.empty(LANES, np.float32)
    factor = np.empty(LANES, np.float32)
    scale = np.empty(LANES, np.float32)
    best = np.empty(LANES, np.float32)
    for first in range(0, groups, LANES):
        width = min(LANES, groups - first)
        for i in range(n):
            for c in range(LANES):
                xs[i, c] = x[i, first + c] if c < width else _ZERO
                ws[i, c] = w[i, first + c] if c < width else _ZERO
        scale[:] = _ZERO
        best[:] = _ZERO
        for t in range(tries):
            for c in range(LANES):
                factor[c] = doubled[t, first + c] if c < width else _ZERO
                sum_xq[c] = _ZERO
                sum_qq[c] = _ZERO
            for i in range(n):
                for c in range(LANES):
                    at[i, c] = np.int32(np.floor(xs[i, c] * factor[c]))
            for i in range(n):
                for c in range(LANES):
                    q = nearest[np.uint32(at[i, c]) & modulo]
                    product = ws[i, c] * q
                    sum_xq[c] += product * xs[i, c]
                    sum_qq[c] += product * q
            for c in range(LANES):
                found = sum_xq[c] / sum_qq[c]
                better = (sum_qq[c] > _ZERO) & ((sum_xq[c] * sum_xq[c] > best[c] * sum_qq[c]) | (t == 0))
                scale[c] = found if better else scale[c]
                best[c] = found * sum_xq[c] if better else best[c]
        for c in range(width):
            scales[first + c] = scale[c]
    return scales
