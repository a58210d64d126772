"""The searches of `ksearch` compiled by numba: the same functions and the same bits, three to five times as fast.

Groups are searched `LANES` at a time, so that the lanes of the processor's vectors are groups, and each group's sums
still add one value after the other. Nothing is reordered or fused, and other threads run meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from mtptools.codecs.compiled import compiled
from mtptools.codecs.ksearch import EPSILON, MAGIC, ROUNDS, SHIFTS, Codes, Floats, Grid

__all__ = ["TILE", "affine", "descent", "positive", "requantize", "symmetric"]

TILE: Final = 128  # superblocks: small, for the caches
LANES: Final = 64
_ZERO: Final = np.float32(0)
_ONE: Final = np.float32(1)
_SHIFTS: Final = np.array(SHIFTS, np.float32)


@compiled
def _integer(value: Any) -> Any:
    """`ksearch.nearest` of one value."""
    return np.int32((np.float32(value + MAGIC).view(np.int32) & np.int32(0x7FFFFF)) - np.int32(0x400000))


@compiled
def _nearest(value: Any, low: Any, high: Any) -> Any:
    """The integer nearest to `value`, limited to low … high, as float32."""
    return np.float32(min(max(_integer(value), low), high))


@compiled
def _affine_code(value: Any, levels: Any, cut: Any) -> Any:
    """The code 0 … levels of one value, as float32."""
    if cut:
        value = value if value > _ZERO else _ZERO
        most = np.float32(levels)
        return np.float32(np.float32((value if value < most else most) + MAGIC) - MAGIC)
    return _nearest(value, np.int32(0), levels)


@compiled
def _load(x: Any, first: Any, out: Any) -> None:
    """LANES groups from `first` on into `out` [n, LANES], zeros after the last."""
    n, groups = x.shape
    width = min(LANES, groups - first)
    for i in range(n):
        out[i, :width] = x[i, first : first + width]
        out[i, width:] = _ZERO


@compiled
def _peaks(x: Any, peak: Any) -> None:
    """`ksearch.largest` of each lane."""
    peak[:] = _ZERO
    for i in range(len(x)):
        for c in range(LANES):
            peak[c] = x[i, c] if abs(x[i, c]) > abs(peak[c]) else peak[c]


@compiled
def _affine(
    x: Any, w: Any, levels: Any, spans: Any, absolute: Any, cut: Any, scales: Any, minima: Any, codes: Any
) -> None:
    n, groups = x.shape
    xs, ws, ls = np.empty((n, LANES), np.float32), np.empty((n, LANES), np.float32), np.empty((n, LANES), np.float32)
    top, start, low = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    sum_w, sum_x = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    sum_l, sum_l2, sum_xl = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    inverse, scale = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    divisor, new_scale, new_low = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    best, error = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    coded_inverse, coded_low = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for first in range(0, groups, LANES):
        _load(x, first, xs)
        _load(w, first, ws)
        for c in range(LANES):
            top[c] = start[c] = xs[0, c]
            sum_w[c] = ws[0, c]
            sum_x[c] = ws[0, c] * xs[0, c]
        for i in range(1, n):
            for c in range(LANES):
                start[c] = xs[i, c] if xs[i, c] < start[c] else start[c]
                top[c] = xs[i, c] if xs[i, c] > top[c] else top[c]
                sum_w[c] += ws[i, c]
                sum_x[c] += ws[i, c] * xs[i, c]
        for c in range(LANES):
            start[c] = _ZERO if start[c] > _ZERO else start[c]
            inverse[c] = np.float32(levels) / (top[c] - start[c])
            scale[c] = _ONE / inverse[c]
            low[c] = coded_low[c] = start[c]
            coded_inverse[c] = inverse[c] if abs(inverse[c]) < np.float32(np.inf) else _ZERO
            best[c] = _ZERO
        for i in range(n):
            for c in range(LANES):
                code = _affine_code(coded_inverse[c] * (xs[i, c] - low[c]), levels, cut)
                gap = scale[c] * code + low[c] - xs[i, c]
                best[c] += ws[i, c] * (abs(gap) if absolute else gap * gap)
        for span in spans:
            for c in range(LANES):
                inverse[c] = span / (top[c] - low[c])
                sum_l[c] = sum_l2[c] = sum_xl[c] = error[c] = _ZERO
            for i in range(n):
                for c in range(LANES):
                    code = _affine_code(inverse[c] * (xs[i, c] - low[c]), levels, cut)
                    ls[i, c] = code
                    product = ws[i, c] * code
                    sum_l[c] += product
                    sum_l2[c] += product * code
                    sum_xl[c] += product * xs[i, c]
            for c in range(LANES):
                divisor[c] = sum_w[c] * sum_l2[c] - sum_l[c] * sum_l[c]
                fitted = (sum_w[c] * sum_xl[c] - sum_x[c] * sum_l[c]) / divisor[c]
                fitted_low = (sum_l2[c] * sum_x[c] - sum_l[c] * sum_xl[c]) / divisor[c]
                alone = sum_xl[c] / sum_l2[c]
                new_scale[c] = alone if fitted_low > _ZERO else fitted
                new_low[c] = _ZERO if fitted_low > _ZERO else fitted_low
            for i in range(n):
                for c in range(LANES):
                    gap = new_scale[c] * ls[i, c] + new_low[c] - xs[i, c]
                    error[c] += ws[i, c] * (abs(gap) if absolute else gap * gap)
            for c in range(LANES):
                better = (divisor[c] > _ZERO) & (error[c] < best[c])
                coded_inverse[c] = inverse[c] if better else coded_inverse[c]
                coded_low[c] = low[c] if better else coded_low[c]
                best[c] = error[c] if better else best[c]
                scale[c] = new_scale[c] if better else scale[c]
                low[c] = new_low[c] if better else low[c]
        for c in range(min(LANES, groups - first)):
            flat = top[c] == start[c]
            scales[first + c] = _ZERO if flat else scale[c]
            minima[first + c] = -start[c] if flat else -low[c]
            for i in range(n):
                code = _affine_code(coded_inverse[c] * (xs[i, c] - coded_low[c]), levels, cut)
                codes[i, first + c] = np.uint8(0) if flat else np.uint8(code)


@compiled
def _symmetric(x: Any, w: Any, levels: Any, shifts: Any, scales: Any, codes: Any) -> None:
    n, groups = x.shape
    xs, ws = np.empty((n, LANES), np.float32), np.empty((n, LANES), np.float32)
    peak, inverse, coded = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    sum_xl, sum_l2 = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    scale, best = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    least, most = np.int32(-levels), np.int32(levels - 1)
    for first in range(0, groups, LANES):
        _load(x, first, xs)
        _load(w, first, ws)
        _peaks(xs, peak)
        for trial in range(-1, shifts.size):
            for c in range(LANES):
                over = np.float32(levels) if trial < 0 else np.float32(levels) + shifts[trial]
                inverse[c] = -over / peak[c]
                sum_xl[c] = sum_l2[c] = _ZERO
            for i in range(n):
                for c in range(LANES):
                    code = _nearest(inverse[c] * xs[i, c], least, most)
                    sum_xl[c] += ws[i, c] * xs[i, c] * code
                    sum_l2[c] += ws[i, c] * code * code
            for c in range(LANES):
                if trial < 0:
                    better = True
                    ratio = sum_xl[c] / sum_l2[c] if sum_l2[c] != _ZERO else _ZERO
                else:
                    better = (sum_l2[c] > _ZERO) & (sum_xl[c] * sum_xl[c] > best[c] * sum_l2[c])
                    ratio = sum_xl[c] / sum_l2[c]
                scale[c] = ratio if better else scale[c]
                best[c] = ratio * sum_xl[c] if better else best[c]
                coded[c] = inverse[c] if better else coded[c]
        for c in range(min(LANES, groups - first)):
            flat = abs(peak[c]) < EPSILON
            scales[first + c] = _ZERO if flat else scale[c]
            for i in range(n):
                code = _nearest(coded[c] * xs[i, c], least, most) + np.float32(levels)
                codes[i, first + c] = np.uint8(0) if flat else np.uint8(code)


@compiled
def _descent(x: Any, levels: Any, scales: Any, codes: Any) -> None:
    n, groups = x.shape
    xs, ls = np.empty((n, LANES), np.float32), np.empty((n, LANES), np.float32)
    peak, sum_xl, sum_l2 = np.empty(LANES, np.float32), np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    least, most = np.int32(-levels), np.int32(levels - 1)
    for first in range(0, groups, LANES):
        _load(x, first, xs)
        _peaks(xs, peak)
        sum_xl[:] = _ZERO
        sum_l2[:] = _ZERO
        for i in range(n):
            for c in range(LANES):
                weight = xs[i, c] * xs[i, c]
                code = _nearest(np.float32(-levels) / peak[c] * xs[i, c], least, most)
                ls[i, c] = code
                sum_xl[c] += weight * xs[i, c] * code
                sum_l2[c] += weight * code * code
        for _ in range(ROUNDS):
            changes = np.int32(0)
            for i in range(n):
                for c in range(LANES):
                    weight = xs[i, c] * xs[i, c]
                    rest_xl = sum_xl[c] - weight * xs[i, c] * ls[i, c]
                    rest_l2 = sum_l2[c] - weight * ls[i, c] * ls[i, c]
                    new = _nearest(xs[i, c] * rest_l2 / rest_xl, least, most)
                    better = (rest_xl > _ZERO) & (new != ls[i, c])
                    rest_xl += weight * xs[i, c] * new
                    rest_l2 += weight * new * new
                    gain = rest_xl * rest_xl * sum_l2[c] > sum_xl[c] * sum_xl[c] * rest_l2
                    better = better & (rest_l2 > _ZERO) & gain
                    changes += np.int32(better)
                    ls[i, c] = new if better else ls[i, c]
                    sum_xl[c] = rest_xl if better else sum_xl[c]
                    sum_l2[c] = rest_l2 if better else sum_l2[c]
            if not changes:
                break
        for c in range(min(LANES, groups - first)):
            flat = abs(peak[c]) < EPSILON
            scales[first + c] = _ZERO if flat or not sum_l2[c] > _ZERO else sum_xl[c] / sum_l2[c]
            for i in range(n):
                codes[i, first + c] = np.uint8(0) if flat else np.uint8(ls[i, c] + np.float32(levels))


@compiled
def _positive(x: Any, w: Any, levels: Any, shifts: Any, scales: Any, codes: Any) -> None:
    n, groups = x.shape
    for c in range(groups):
        top = max(_ZERO, x[:, c].max())
        if top < EPSILON:
            scales[c] = _ZERO
            codes[:, c] = 0
            continue
        kept = np.float32(levels) / top
        best = _ZERO
        for i in range(n):
            gap = x[i, c] - _ONE / kept * np.float32(np.uint8(_integer(kept * x[i, c])))
            best += w[i, c] * gap * gap
        for shift in shifts:
            inverse = (shift + np.float32(levels)) / top
            error = _ZERO
            for i in range(n):
                gap = x[i, c] - _ONE / inverse * np.float32(min(levels, _integer(inverse * x[i, c])))
                error += w[i, c] * gap * gap
            if error < best:
                best = error
                kept = inverse
        sum_xl = sum_l2 = _ZERO
        for i in range(n):
            code = min(levels, _integer(kept * x[i, c]))
            codes[i, c] = np.uint8(code)
            sum_xl += w[i, c] * x[i, c] * np.float32(code)
            sum_l2 += w[i, c] * np.float32(code) * np.float32(code)
        for _ in range(ROUNDS):
            changed = False
            for i in range(n):
                old = np.float32(codes[i, c])
                rest_xl = sum_xl - w[i, c] * x[i, c] * old
                rest_l2 = sum_l2 - w[i, c] * old * old
                if rest_xl > _ZERO and rest_l2 > _ZERO:
                    code = min(levels, _integer(x[i, c] * rest_l2 / rest_xl))
                    new = np.float32(code)
                    rest_xl += w[i, c] * x[i, c] * new
                    rest_l2 += w[i, c] * new * new
                    if new != old and rest_xl * rest_xl * sum_l2 > sum_xl * sum_xl * rest_l2:
                        codes[i, c] = np.uint8(code)
                        sum_xl, sum_l2 = rest_xl, rest_l2
                        changed = True
            if not changed:
                break
        scales[c] = sum_xl / sum_l2 if sum_l2 > _ZERO else _ZERO


@compiled
def _requantize(x: Any, scale: Any, minimum: Any, codes: Any, low: Any, high: Any) -> None:
    for i in range(len(x)):
        for c in range(len(scale)):
            new = np.uint8(_nearest((x[i, c] + minimum[c]) / scale[c], low, high) - np.float32(low))
            codes[i, c] = new if scale[c] != _ZERO else codes[i, c]


def _results(x: Floats) -> tuple[Floats, Codes]:
    return np.empty(x.shape[1], np.float32), np.empty(x.shape, np.uint8)


def affine(x: Floats, w: Floats, levels: int, grid: Grid) -> tuple[Floats, Floats, Codes]:
    """As `ksearch.affine`."""
    scale, codes = _results(x)
    minimum = np.empty_like(scale)
    _affine(x, w, np.int32(levels), grid.spans(levels), grid.absolute, grid.cut, scale, minimum, codes)
    return scale, minimum, codes


def symmetric(x: Floats, w: Floats, levels: int) -> tuple[Floats, Codes]:
    """As `ksearch.symmetric`."""
    scale, codes = _results(x)
    _symmetric(x, w, np.int32(levels), _SHIFTS, scale, codes)
    return scale, codes


def descent(x: Floats, levels: int) -> tuple[Floats, Codes]:
    """As `ksearch.descent`."""
    scale, codes = _results(x)
    _descent(x, np.int32(levels), scale, codes)
    return scale, codes


def positive(x: Floats, w: Floats, levels: int) -> tuple[Floats, Codes]:
    """As `ksearch.positive`."""
    scale, codes = _results(x)
    _positive(x, w, np.int32(levels), _SHIFTS[5:13], scale, codes)
    return scale, codes


def requantize(x: Floats, scale: Floats, minimum: Floats | None, codes: Codes, low: int, high: int) -> None:
    """As `ksearch.requantize`."""
    minimum = np.zeros_like(scale) if minimum is None else minimum
    _requantize(x, scale, minimum, codes, np.int32(low), np.int32(high))
