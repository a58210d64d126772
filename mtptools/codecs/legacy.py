"""Q4_0, Q4_1, Q5_0 and Q5_1: groups of 32 values with one F16 scale, byte for byte as ggml's C code encodes them.

Q4_0 and Q5_0 count codes from the middle, Q4_1 and Q5_1 from a minimum, F16 too. Without importance the scale spans
the group; with it, the searches of `ksearch` find scale (and minimum). gguf-py encodes without importance, but parts
from C in the sign of a zero: of a group of zeros, and of a minimum. Sources: `quantize_row_q4_0_ref` and its
neighbours, and `quantize_row_q4_0_impl` and its, x86-64 baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np

from mtptools.codecs import ksearch
from mtptools.codecs.engine import Engine, twin
from mtptools.codecs.ksearch import GRID_WITH_IMPORTANCE, Codes, Floats

__all__ = ["GROUP", "TYPES", "encode", "half", "inverse", "nibbles"]

GROUP: Final = 32
_TILE: Final = 4096  # groups at a time: a search's arrays stay in the cache
_ZERO: Final = np.float32(0)


@dataclass(frozen=True, slots=True)
class _Kind:
    bits: int
    affine: bool  # has a minimum

    @property
    def block_bytes(self) -> int:
        return (4 if self.affine else 2) + GROUP * self.bits // 8


_KINDS: Final = {
    "Q4_0": _Kind(4, affine=False),
    "Q4_1": _Kind(4, affine=True),
    "Q5_0": _Kind(5, affine=False),
    "Q5_1": _Kind(5, affine=True),
}
TYPES: Final = tuple(_KINDS)

_Found = tuple[Floats, "Floats | None", Codes]  # scale and minimum [n], codes [32, n]
_Find = Callable[[Floats, _Kind, int], _Found]  # from values [32, n], of which the first are group number …


def encode(values: Floats, codec: str, importance: Floats | None = None, *, engine: Engine | None = None) -> Codes:
    """float32 [rows, cols], finite, cols a multiple of 32, as blocks of `codec`, uint8 [rows, row_bytes].

    importance  float32 [cols], how much an error in a column counts
    engine      what runs the searches, with the same bytes: numba when it is installed
    """
    values = np.ascontiguousarray(values, np.float32)
    kind = _KINDS[codec]
    out = np.empty((len(values), values.shape[1] // GROUP * kind.block_bytes), np.uint8)
    blocks = out.reshape(-1, kind.block_bytes)
    groups = values.reshape(-1, GROUP)
    with np.errstate(all="ignore"):  # C's overflow and division by zero are part of the result
        if importance is None:
            find: _Find = _spanned if kind.affine else _centred
        else:
            find = _searcher(values, np.asarray(importance, np.float32), twin("kfast", engine) or ksearch)
        for start in range(0, len(groups), _TILE):
            x = np.ascontiguousarray(groups[start : start + _TILE].T)
            _pack(*find(x, kind, start), kind, blocks[start : start + _TILE])
    return out


def _centred(x: Floats, kind: _Kind, _: int) -> _Found:
    """Without importance: the first value of the largest magnitude gets code 0."""
    middle = 1 << (kind.bits - 1)
    high, low = x.max(axis=0), x.min(axis=0)
    peak = np.where(high > -low, high, low)
    tied = np.flatnonzero(high == -low)
    peak[tied] = ksearch.largest(x[:, tied])
    scale = peak / np.float32(-middle)
    factor = inverse(scale)
    codes = np.minimum((x * factor + np.float32(middle + 0.5)).astype(np.uint8), 2 * middle - 1)
    codes[:, np.isinf(factor)] = 0  # C turns what is out of a byte's range into 0
    return scale, None, codes


def _spanned(x: Floats, kind: _Kind, _: int) -> _Found:
    """Without importance: from the smallest value to the largest."""
    levels = (1 << kind.bits) - 1
    low = _lowest(x)
    scale = (x.max(axis=0) - low) / np.float32(levels) + _ZERO
    factor = inverse(scale)
    codes = np.minimum(((x - low) * factor + np.float32(0.5)).astype(np.uint8), levels)
    codes[:, ~np.isfinite(factor + scale)] = 0
    return scale, low, codes


def _lowest(x: Floats) -> Floats:
    """The smallest value of each group; of zeros, the first: numpy takes any."""
    low = x.min(axis=0)
    zero = np.flatnonzero(low == 0)
    columns = x[:, zero]
    low[zero] = np.take_along_axis(columns, (columns == 0).argmax(axis=0)[None], axis=0)[0]
    return np.asarray(low)


def _searcher(values: Floats, importance: Floats, search: ModuleType) -> _Find:
    """With importance. An error's weight is that times the root of x squared plus the mean square of the whole row."""
    mean = np.add.accumulate(values * values, axis=1)[:, -1] / np.float32(values.shape[1])  # one after the other
    columns = importance.reshape(-1, GROUP)

    def find(x: Floats, kind: _Kind, start: int) -> _Found:
        row, group = np.divmod(np.arange(start, start + x.shape[1]), len(columns))
        w = columns[group].T * np.sqrt(mean[row] + x * x)
        if not kind.affine:
            scale, codes = search.symmetric(x, w, 1 << (kind.bits - 1))
            return scale, None, codes
        levels = (1 << kind.bits) - 1
        scale, minimum, codes = search.affine(x, w, levels, GRID_WITH_IMPORTANCE)
        # Where the search ends as it began, a minimum of zero has that zero's sign.
        low = _lowest(x)
        began = (scale == 0) | (scale == 1 / (np.float32(levels) / (x.max(axis=0) - low)))
        return scale, np.where(began & (low == 0) & (minimum == 0), low, -minimum), codes

    return find


def _pack(scale: Floats, minimum: Floats | None, codes: Codes, kind: _Kind, out: Codes) -> None:
    """A block: scale, minimum, the codes' fifth bits as one 32-bit number, their other bits."""
    parts = [half(scale)]
    if minimum is not None:
        parts.append(half(minimum))
    if kind.bits == 5:
        parts.append(np.packbits(codes >> np.uint8(4), axis=0, bitorder="little").T)
    np.concatenate([*parts, nibbles(codes & np.uint8(15))], axis=1, out=out)


def inverse(scale: Floats) -> Floats:
    """1 / scale, and 0 for 0."""
    return np.where(scale != 0, 1 / scale, _ZERO)


def half(values: Floats) -> Codes:
    """float32 [n] as little-endian F16, uint8 [n, 2]."""
    return values.astype("<f2").view(np.uint8).reshape(-1, 2)


def nibbles(codes: Codes) -> Codes:
    """Codes below 16, [32, n], two a byte, uint8 [n, 16]: value j is low, value j + 16 high."""
    return (codes[:16] | codes[16:] << np.uint8(4)).T
