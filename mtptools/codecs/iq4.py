"""IQ4_NL and IQ4_XS: 4-bit codes of an uneven grid, byte for byte as ggml's C code encodes them.

A group of 32 values has one scale, found by trying 16; IQ4_NL stores it as F16, IQ4_XS as 6 bits of a superblock of 8
groups. Groups stand on the last axis, [32, n]: a sum over axis 0 then adds in the order of C's loop, which float32
makes part of the result. Source of layout and search: ggml's `quantize_row_iq4_nl_impl`, x86-64 baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from mtptools.codecs.engine import Engine, twin
from mtptools.codecs.ksearch import EPSILON, Codes, Floats, largest, nearest, total
from mtptools.codecs.legacy import GROUP, half, inverse, nibbles

__all__ = ["TYPES", "attempts", "encode"]

Attempts = Callable[[Floats, Floats, Floats, Floats], Floats]

TYPES: Final = ("IQ4_NL", "IQ4_XS")

GRID: Final = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

_TILE: Final = 1024  # groups at a time: a trial's arrays stay in the cache
_TRIES: Final = 7
_LEVELS: Final = 32  # of IQ4_XS's scales, on each side of zero
_GROUPS: Final = 8  # in an IQ4_XS superblock
_SHIFTS: Final = 2 * np.arange(_GROUPS, dtype="<u2")

# The nearest code changes half way between two grid values, at a multiple of 1/2, and a value in the middle takes the
# upper one: the code of v is a table's entry at floor(2 v). Entries of negative numbers stand at its end.
_REACH: Final = 512
_HALVES: Final = np.fft.ifftshift(np.arange(-_REACH, _REACH)) / 2
_CODES: Final = (_HALVES[:, None] >= (GRID[1:] + GRID[:-1]) / 2).sum(axis=1).astype(np.uint8)
_NEAREST: Final = GRID[_CODES]


def encode(values: Floats, codec: str, importance: Floats | None = None, *, engine: Engine | None = None) -> Codes:
    """float32 [rows, cols], finite, cols whole blocks, as blocks of `codec`, uint8 [rows, row_bytes].

    importance  float32 [cols], how much an error in a column counts
    engine      what runs the search, with the same bytes: numba when it is installed
    """
    found = twin("iq4_fast", engine)
    search: Attempts = attempts if found is None else found.attempts
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, GROUP)
    weights = None if importance is None else np.asarray(importance, np.float32).reshape(-1, GROUP)
    joined, block_bytes, pack = _KINDS[codec]
    out = np.empty((len(values), values.shape[1] // GROUP // joined * block_bytes), np.uint8)
    blocks = out.reshape(-1, block_bytes)
    with np.errstate(all="ignore"):  # C's overflow and division by zero are part of the result
        for start in range(0, len(groups), _TILE):
            x = np.ascontiguousarray(groups[start : start + _TILE].T)
            counted = None if weights is None else weights[np.arange(start, start + x.shape[1]) % len(weights)].T
            pack(
                x, _scales(x, _weights(x, counted, joined), search), blocks[start // joined : (start + _TILE) // joined]
            )
    return out


def _weights(x: Floats, importance: Floats | None, groups: int) -> Floats:
    """What an error counts: x squared, or importance times the root of x squared plus twice the mean square.

    The mean is over `groups` groups that follow each other.
    """
    squares = x * x
    if importance is None:
        return squares
    # [32, n] to [32 groups, n / groups], in the order in which the values stand in the row.
    joined = squares.reshape(GROUP, -1, groups).transpose(2, 0, 1).reshape(groups * GROUP, -1)
    mean = total(joined) * np.float32(2 / (groups * GROUP))
    weighted: Floats = importance * np.sqrt(np.repeat(mean, groups) + squares)
    return weighted


def _scales(x: Floats, w: Floats, attempts: Attempts) -> Floats:
    """Each group's scale, [n]: the least squares scale of the codes that the best of 16 trial scales gives."""
    peak = largest(x)
    flat = np.abs(peak) < EPSILON
    peak[flat] = 1
    factors = [1 / (-peak / GRID[0]), *((np.float32(step) + GRID[0]) / peak for step in range(-_TRIES, _TRIES + 1))]
    return np.where(flat, np.float32(0), attempts(x, w, np.float32(2) * np.stack(factors), _NEAREST))


def attempts(x: Floats, w: Floats, doubled: Floats, nearest: Floats) -> Floats:
    """The best scale, [n], of those with codes of x times half of `doubled`, [tries, n]; the first try always counts.

    nearest  grid values, by floor(2 v) modulo their number
    """
    y, q = np.empty_like(x), np.empty_like(x)
    at = np.empty(x.shape, np.intp)
    scale = best = np.zeros(x.shape[1], np.float32)
    for number, factor in enumerate(doubled):
        np.multiply(x, factor, out=y)
        np.floor(y, out=y)
        at[...] = y
        np.take(nearest, at, out=q, mode="wrap")
        np.multiply(w, q, out=y)
        np.multiply(y, q, out=q)
        np.multiply(y, x, out=y)
        sum_xq, sum_qq = total(y), total(q)
        better = (sum_qq > 0) & ((sum_xq * sum_xq > best * sum_qq) | (number == 0))
        scale = np.where(better, sum_xq / sum_qq, scale)
        best = np.where(better, scale * sum_xq, best)
    return scale


def _codes(x: Floats, factor: Floats) -> Codes:
    """The codes of x times `factor`, two a byte, uint8 [n, 16]; NaN (0 times infinity) takes the last code."""
    doubled = np.floor(x * factor * np.float32(2))
    codes = np.take(_CODES, np.maximum(np.fmin(doubled, _REACH - 1), -_REACH).astype(np.intp), mode="wrap")
    return nibbles(codes)


def _pack_nl(x: Floats, scale: Floats, out: Codes) -> None:
    """Blocks of one group, [n, 18]: its scale, then the codes."""
    out[:, :2] = half(scale)
    out[:, 2:] = _codes(x, inverse(scale))


def _pack_xs(x: Floats, scale: Floats, out: Codes) -> None:
    """Superblocks of 8 groups, [n / 8, 136]: the unit of the scales, their upper 2 bits, lower 4, then the codes."""
    scales = scale.reshape(-1, _GROUPS)
    unit = -largest(np.ascontiguousarray(scales.T))[:, None] / np.float32(_LEVELS)
    levels = np.clip(nearest(inverse(unit) * scales), -_LEVELS, _LEVELS - 1)
    stored = (levels + _LEVELS).astype(np.uint16)
    low = (stored & 15).astype(np.uint8)
    out[:, :2] = half(unit[:, 0])
    out[:, 2:4] = np.bitwise_or.reduce(stored >> 4 << _SHIFTS, axis=1).view(np.uint8).reshape(-1, 2)
    out[:, 4:8] = low[:, ::2] | low[:, 1::2] << np.uint8(4)
    out[:, 8:] = _codes(x, inverse(unit * levels.astype(np.float32)).reshape(-1)).reshape(len(scales), -1)


# Groups in a block, its bytes, and what writes it.
_KINDS: Final = {"IQ4_NL": (1, 18, _pack_nl), "IQ4_XS": (_GROUPS, 136, _pack_xs)}
