"""The searches behind ggml's K-quants, in numpy: scale, minimum and codes of many small groups at once.

Groups are columns: arrays are [n, groups], so that a sum over axis 0 adds one value after the other, as C does. Every
product and sum is rounded to float32 in C's order, and the results are ggml's bit for bit. `kfast` has the same
functions for numba.

Sources: `make_qkx2_quants` and `make_qkx3_quants` (one search on two grids), `make_qx_quants`, `make_q3_quants` and
`make_qp_quants` in ggml-quants.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EPSILON",
    "MAGIC",
    "ROUNDS",
    "SHIFTS",
    "TILE",
    "Codes",
    "Floats",
    "Grid",
    "affine",
    "descent",
    "largest",
    "nearest",
    "positive",
    "requantize",
    "symmetric",
    "total",
]

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Grid:
    """The scales an affine search tries: `levels + first + i step` codes to a group's range, i = 0 … `steps`.

    absolute  errors are |difference|, not its square
    cut       values are limited to the codes before they are rounded, not after: beyond ±2^22 that makes other codes
    """

    first: float
    step: float
    steps: int
    absolute: bool = False
    cut: bool = False

    def spans(self, levels: int) -> Floats:
        """`levels + first + i step`, rounded to float32 as C does at each operation."""
        first, step = np.float32(self.first), np.float32(self.step)
        return first + step * np.arange(self.steps + 1, dtype=np.float32) + np.float32(levels)


GRID_WITH_IMPORTANCE: Final = Grid(-0.9, 0.05, 36, cut=True)


EPSILON: Final = np.float32(1e-15)  # groups of values smaller than this are stored as zeros
TILE: Final = 1024  # superblocks at a time: numpy's cost of a call is spread over them
SHIFTS: Final = tuple(np.float32(0.1) * np.float32(i) for i in range(-9, 10) if i)  # of the codes a range is cut into
ROUNDS: Final = 5  # of coordinate descent
MAGIC: Final = np.float32(12582912)  # 1.5 · 2^23: adding it leaves the nearest integer in the low bits
_TAME: Final = np.float32(4e6)  # below 2^22, rint is what those bits say, and takes half the time
_ZERO: Final = np.float32(0)
_ONE: Final = np.float32(1)


def nearest(values: Floats) -> NDArray[np.int32]:
    """The nearest integers, ties to even; beyond ±2^22 whatever C's bits give, and 0 for NaN."""
    bits = (values + MAGIC).view(np.int32)
    bits &= 0x7FFFFF
    bits -= 0x400000
    return bits


def _round(values: Floats, low: int, high: int, *, tame: bool, cut: bool = False) -> None:
    """`nearest` of `values`, limited to low … high, in place. `tame`: none reaches 2^22. `cut`: limited before."""
    if tame or cut:
        if not tame:
            values[np.isnan(values)] = low
        np.clip(values, np.float32(low), np.float32(high), out=values)
        np.rint(values, out=values)
    else:
        values[...] = np.clip(nearest(values), low, high)


def total(values: Floats, start: np.float32 = _ZERO) -> Floats:
    """Sums over axis 0 of [n, groups], from `start`, one row after the other."""
    if values.shape[1] > 1:
        return np.asarray(np.add.reduce(values, axis=0, initial=start))
    lone = np.full(1, start)
    for row in values:  # numpy would add a lone column in pairs
        lone += row
    return lone


def largest(x: Floats) -> Floats:
    """Of each group the first value of the largest magnitude; 0 when all are 0 or NaN."""
    sizes = np.abs(x)
    sizes[np.isnan(sizes)] = 0
    at = np.argmax(sizes, axis=0)[None]
    return np.where(np.take_along_axis(sizes, at, 0)[0] > 0, np.take_along_axis(x, at, 0)[0], _ZERO)


def affine(x: Floats, w: Floats, levels: int, grid: Grid) -> tuple[Floats, Floats, Codes]:
    """Scale and minimum [groups] and codes 0 … levels [n, groups], such that `scale code - minimum` is near `x`.

    Of the grid's scales, each refined by least squares under the weights `w` [n, groups], the first best one. The range
    that the next scale cuts up starts at the best minimum so far.
    """
    bottom, top = x.min(axis=0), x.max(axis=0)
    # A range of 0 takes its sign, and the scales that of infinity, from the first zero.
    zero = np.flatnonzero(top == 0)
    top[zero] = x[np.argmax(x[:, zero], axis=0), zero]
    low = np.where(bottom > 0, _ZERO, bottom)
    start, flat = low, top == low
    top = np.where(flat, np.where(low < 0, _ZERO, _ONE), top)  # any range will do: the result is set at the end
    sum_w, sum_x = total(w), total(w * x, -_ZERO)  # from the first product on, whose zero may have a sign
    code, product, other = np.empty_like(x), np.empty_like(x), np.empty_like(x)

    def encode(inverse: Floats, low: Floats) -> None:
        ends = np.maximum(np.abs(inverse * (top - low)), np.abs(inverse * (bottom - low)))
        np.subtract(x, low, out=code)
        np.multiply(code, inverse, out=code)
        _round(code, 0, levels, tame=bool((ends < _TAME).all()), cut=grid.cut)

    def error(scale: Floats, low: Floats) -> Floats:
        np.multiply(code, scale, out=product)
        np.add(product, low, out=product)
        np.subtract(product, x, out=product)
        if grid.absolute:
            np.abs(product, out=product)
        else:
            np.multiply(product, product, out=product)
        np.multiply(product, w, out=product)
        return total(product)

    inverse = np.divide(np.float32(levels), top - low)
    scale = np.divide(_ONE, inverse)
    inverse[~np.isfinite(inverse)] = 0  # C rounds infinity and NaN to 0
    encode(inverse, low)
    best = error(scale, low)
    coded = [inverse, low.copy()]  # what the codes of the best so far were made with
    low = low.copy()
    for span in grid.spans(levels):
        inverse = span / (top - low)
        encode(inverse, low)
        np.multiply(w, code, out=product)
        sum_l = total(product)
        np.multiply(product, x, out=other)
        sum_xl = total(other)
        np.multiply(product, code, out=product)
        sum_l2 = total(product)
        divisor = sum_w * sum_l2 - sum_l * sum_l
        new_scale = np.divide(sum_w * sum_xl - sum_x * sum_l, divisor)
        new_low = np.divide(sum_l2 * sum_x - sum_l * sum_xl, divisor)
        above = new_low > 0
        new_scale = np.where(above, np.divide(sum_xl, sum_l2), new_scale)
        new_low = np.where(above, _ZERO, new_low)
        found = error(new_scale, new_low)
        better = (divisor > 0) & (found < best)
        for kept, new in zip((*coded, best, scale, low), (inverse, low, found, new_scale, new_low), strict=True):
            np.copyto(kept, new, where=better)
    encode(*coded)
    code[:, flat] = 0
    return np.where(flat, _ZERO, scale), -np.where(flat, start, low), code.astype(np.uint8)


def symmetric(x: Floats, w: Floats, levels: int) -> tuple[Floats, Codes]:
    """Scale [groups] and codes 0 … 2 levels - 1 [n, groups], such that `scale (code - levels)` is near `x`.

    Of 19 scales around the one that takes the value of the largest magnitude to `-levels`, the first best one under the
    weights `w` [n, groups]. `x` may hold NaN.
    """
    peak = largest(x)
    flat = np.abs(peak) < EPSILON
    peak = np.where(flat, _ONE, peak)
    wx = w * x
    code, product = np.empty_like(x), np.empty_like(x)
    tame = bool(np.isfinite(x).all())  # no magnitude is above the peak's

    def sums(inverse: Floats) -> tuple[Floats, Floats]:
        np.multiply(x, inverse, out=code)
        _round(code, -levels, levels - 1, tame=tame)
        np.multiply(wx, code, out=product)
        sum_xl = total(product)
        np.multiply(w, code, out=product)
        np.multiply(product, code, out=product)
        return sum_xl, total(product)

    coded = np.float32(-levels) / peak
    sum_xl, sum_l2 = sums(coded)
    scale = np.where(sum_l2 != 0, sum_xl / sum_l2, _ZERO)
    best = scale * sum_xl
    for shift in SHIFTS:
        inverse = -(np.float32(levels) + shift) / peak
        sum_xl, sum_l2 = sums(inverse)
        better = (sum_l2 > 0) & (sum_xl * sum_xl > best * sum_l2)
        np.copyto(coded, inverse, where=better)
        np.copyto(scale, sum_xl / sum_l2, where=better)
        np.copyto(best, scale * sum_xl, where=better)
    sums(coded)
    code += np.float32(levels)
    code[:, flat] = 0
    return np.where(flat, _ZERO, scale), code.astype(np.uint8)


def descent(x: Floats, levels: int) -> tuple[Floats, Codes]:
    """As `symmetric`, weighted by x²: from the first scale on, code after code is set to its best, five rounds."""
    peak = largest(x)
    flat = np.abs(peak) < EPSILON
    peak = np.where(flat, _ONE, peak)
    code = x * (np.float32(-levels) / peak)
    _round(code, -levels, levels - 1, tame=True)
    w = x * x
    wx = w * x
    sum_xl, sum_l2 = total(wx * code), total(w * code * code)
    active = np.arange(len(flat))  # groups whose codes changed in the last round
    for _ in range(ROUNDS):
        parts = [np.take(part, active, axis=1) for part in (x, w, wx, code)]
        xl, l2 = sum_xl[active], sum_l2[active]
        changed = np.zeros(len(active), bool)
        for one, weight, weighted, old in zip(*parts, strict=True):
            rest_xl = xl - weighted * old
            rest_l2 = l2 - weight * old * old
            new = one * rest_l2
            new /= rest_xl
            _round(new, -levels, levels - 1, tame=bool((np.abs(new) < _TAME).all()))
            better = (rest_xl > 0) & (new != old)
            rest_xl += weighted * new
            rest_l2 += weight * new * new
            better &= (rest_l2 > 0) & (rest_xl * rest_xl * l2 > xl * xl * rest_l2)
            at = np.flatnonzero(better)
            changed[at] = True
            old[at], xl[at], l2[at] = new[at], rest_xl[at], rest_l2[at]
        code[:, active], sum_xl[active], sum_l2[active] = parts[-1], xl, l2
        active = active[changed]
        if not len(active):
            break
    code += np.float32(levels)
    code[:, flat] = 0
    return np.where((sum_l2 > 0) & ~flat, sum_xl / sum_l2, _ZERO), code.astype(np.uint8)


def positive(x: Floats, w: Floats, levels: int) -> tuple[Floats, Codes]:
    """Scale [groups] and codes [n, groups] of values of 0 and more, such that `scale code` is near `x`.

    Nine scales, then code after code, five rounds. `x` is the scales or minima of a superblock's groups. A negative one
    gets a negative code, which C keeps in a byte: it comes back as 256 more, in later rounds too.
    """
    top = x.max(axis=0, initial=_ZERO)
    flat = top < EPSILON
    top = np.where(flat, _ONE, top)
    wx = w * x
    kept = np.divide(np.float32(levels), top)
    difference = x - np.divide(_ONE, kept) * nearest(kept * x).astype(np.uint8)
    best = total(w * difference * difference)
    for shift in SHIFTS[5:13]:
        inverse = np.divide(shift + np.float32(levels), top)
        difference = x - np.divide(_ONE, inverse) * np.minimum(nearest(inverse * x), levels).astype(np.float32)
        found = total(w * difference * difference)
        better = found < best
        np.copyto(kept, inverse, where=better)
        np.copyto(best, found, where=better)
    signed = np.minimum(nearest(kept * x), levels)
    code = signed.astype(np.uint8)
    row = signed.astype(np.float32)
    sum_xl, sum_l2 = total(wx * row), total(w * row * row)
    for _ in range(ROUNDS):
        changed = False
        for one, weight, weighted, codes in zip(x, w, wx, code, strict=True):
            old = codes.astype(np.float32)
            rest_xl = sum_xl - weighted * old
            rest_l2 = sum_l2 - weight * old * old
            new = np.minimum(nearest(one * rest_l2 / rest_xl), levels)
            tried = (rest_xl > 0) & (rest_l2 > 0) & (new != codes)
            value = new.astype(np.float32)
            rest_xl += weighted * value
            rest_l2 += weight * value * value
            better = tried & (rest_xl * rest_xl * sum_l2 > sum_xl * sum_xl * rest_l2)
            if better.any():
                changed = True
                np.copyto(codes, new.astype(np.uint8), where=better)
                np.copyto(sum_xl, rest_xl, where=better)
                np.copyto(sum_l2, rest_l2, where=better)
        if not changed:
            break
    code[:, flat] = 0
    return np.where((sum_l2 > 0) & ~flat, sum_xl / sum_l2, _ZERO), code


def requantize(x: Floats, scale: Floats, minimum: Floats | None, codes: Codes, low: int, high: int) -> None:
    """Sets `codes` [n, groups] to the best under the scales and minima as stored; where the scale is 0, they stay.

    Codes are counted from `low`, which is 0 or less.
    """
    value = x / scale if minimum is None else (x + minimum) / scale
    new = np.clip(nearest(value), low, high)
    new -= low
    np.copyto(codes, new.astype(np.uint8), where=scale != 0)
