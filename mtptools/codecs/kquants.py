"""ggml's K-quants, Q2_K to Q6_K: float32 to blocks, byte for byte what `ggml_quantize_chunk` makes on x86-64.

A superblock of 256 values is 8 or 16 groups. A search gives each group's scale (and minimum); these are stored as small
integers times a float16 of the superblock's; then the codes are set anew under what is stored. With importance, other
weights and other searches apply. Sources: `quantize_row_q*_K_ref` (without) and `quantize_row_q*_K_impl` (with
importance) in ggml-quants.c.

C built with fused multiply-adds makes other last bits: the identity is with ggml's x86-64 baseline. In one corner it is
with ggml of October 2026 (xllamacpp 2026.10), where earlier ones differ: `Grid.cut`, which matters when importance is 0
or 15 decades apart within a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import kpack, ksearch
from mtptools.codecs.engine import Engine, twin
from mtptools.codecs.ksearch import EPSILON, GRID_WITH_IMPORTANCE, Codes, Floats, Grid, largest, nearest, total

__all__ = ["TYPES", "encode"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type whose values are `scale code`, codes -levels … levels - 1, `group` of them to a scale."""

    block_bytes: int
    group: int
    levels: int


@dataclass(frozen=True, slots=True)
class _Affine(_Kind):
    """A type whose values are `scale code - minimum`, codes 0 … levels.

    fields    the largest stored scale or minimum of a group
    grid      the scales tried without importance
    rms       without importance, weights are |x| and the group's root mean square; else |x| alone
    variance  how often the superblock's mean square counts in the weights with importance
    cut       without and with importance: whether a negative scale, which is 256 more in its byte, is cut to `fields`
    """

    fields: int
    grid: Grid
    rms: bool
    variance: int
    cut: tuple[bool, bool]


_AFFINE: Final = {
    "Q2_K": _Affine(84, 16, 3, 15, Grid(-0.5, 0.1, 15, absolute=True), rms=False, variance=1, cut=(False, False)),
    "Q4_K": _Affine(144, 32, 15, 63, Grid(-1, 0.1, 20), rms=True, variance=2, cut=(True, False)),
    "Q5_K": _Affine(176, 32, 31, 63, Grid(-0.5, 0.1, 15), rms=True, variance=2, cut=(True, True)),
}
_SYMMETRIC: Final = {"Q3_K": _Kind(110, 16, 4), "Q6_K": _Kind(210, 16, 32)}

TYPES: Final = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def encode(
    values: Floats, codec: str, importance: Floats | None = None, *, engine: Engine | None = None
) -> NDArray[np.uint8]:
    """float32 [rows, cols], finite, cols a multiple of 256, as blocks of `codec`, uint8 [rows, row_bytes].

    importance  float32 [cols], how much an error in a column counts
    engine      what runs the searches, with the same bytes: numba when it is installed
    """
    kind = _AFFINE.get(codec) or _SYMMETRIC[codec]
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, 256)
    weights = None if importance is None else np.ascontiguousarray(importance, np.float32).reshape(-1, 256)
    out = np.empty((len(blocks), kind.block_bytes), np.uint8)
    search = twin("kfast", engine) or ksearch
    with np.errstate(all="ignore"):  # C's overflow and division by zero are part of the result
        for start in range(0, len(blocks), search.TILE):
            tile = blocks[start : start + search.TILE]
            weight = None if weights is None else weights[np.arange(start, start + len(tile)) % len(weights)]
            part = out[start : start + search.TILE]
            if isinstance(kind, _Affine):
                _encode_affine(search, tile, weight, kind, part)
            elif codec == "Q3_K":
                _encode_q3(search, tile, weight, kind, part)
            else:
                _encode_q6(search, tile, weight, kind, part)
    return out.reshape(len(values), values.shape[1] // 256 * kind.block_bytes)


def _columns(values: Floats, group: int) -> Floats:
    """[blocks, 256] as [group, blocks · groups]: groups side by side."""
    return np.ascontiguousarray(values.reshape(-1, group).T)


def _of_blocks(values: Floats, group: int) -> Floats:
    """One value a group, [blocks · groups], as [groups, blocks]: superblocks side by side."""
    return np.ascontiguousarray(values.reshape(-1, 256 // group).T)


def _rows(codes: Codes) -> Codes:
    """Codes [group, blocks · groups] as [blocks, 256]."""
    return np.ascontiguousarray(codes.T).reshape(-1, 256)


def _weighted(tile: Floats, importance: Floats, variance: int, group: int) -> tuple[Floats, Floats]:
    """Weights of the errors with importance [group, blocks · groups], and their sums by group [groups, blocks]."""
    squares = tile * tile
    whole = np.add.accumulate(squares, axis=1)[:, -1:]  # one after the other
    weights = _columns(importance * np.sqrt(np.float32(variance) * whole / np.float32(256) + squares), group)
    return weights, _of_blocks(total(weights), group)


def _affine_fields(values: Floats, kind: _Affine) -> tuple[Floats, Codes]:
    """The unit [blocks] and multiples [blocks, groups] for the scales or minima [blocks · groups] of groups."""
    values = values.reshape(-1, 256 // kind.group)
    top = values.max(axis=1, initial=np.float32(0)) + np.float32(0)  # not -0, whose sign would be stored
    inverse = np.where(top > 0, np.float32(kind.fields) / top, np.float32(0))
    return top / np.float32(kind.fields), nearest(inverse[:, None] * values).astype(np.uint8)


def _encode_affine(search: ModuleType, tile: Floats, importance: Floats | None, kind: _Affine, out: Codes) -> None:
    x = _columns(tile, kind.group)
    if importance is None:
        w = np.abs(x)
        if kind.rms:
            w += np.sqrt(total(x * x) / np.float32(kind.group))
        scale, minimum, codes = search.affine(x, w, kind.levels, kind.grid)
        (d, scales), (d_min, minima) = _affine_fields(scale, kind), _affine_fields(minimum, kind)
    else:
        w, sums = _weighted(tile, importance, kind.variance, kind.group)
        scale, minimum, codes = search.affine(x, w, kind.levels, GRID_WITH_IMPORTANCE)
        d, scales = search.positive(_of_blocks(scale, kind.group), sums, kind.fields)
        d_min, minima = search.positive(_of_blocks(minimum, kind.group), sums, kind.fields)
        scales, minima = scales.T, minima.T
    if kind.cut[importance is not None]:
        scales, minima = np.minimum(scales, kind.fields), np.minimum(minima, kind.fields)
    (d_bytes, d), (min_bytes, d_min) = kpack.half(d), kpack.half(d_min)
    fields = kpack.scales_4(scales, minima) if kind.fields == 15 else kpack.scales_6(scales, minima)
    scales, minima = kpack.stored_4(fields) if kind.fields == 15 else kpack.stored_6(fields)
    search.requantize(x, (d * scales).reshape(-1), (d_min * minima).reshape(-1), codes, 0, kind.levels)
    codes = _rows(codes)
    parts: tuple[Codes, ...]
    if kind.levels == 3:
        parts = fields, kpack.join(codes, 2, 2), d_bytes, min_bytes
    elif kind.levels == 15:
        parts = d_bytes, min_bytes, fields, kpack.join(codes, 4, 4)
    else:
        parts = d_bytes, min_bytes, fields, kpack.join(codes, 1, 1, 4), kpack.join(codes, 4, 4)
    np.concatenate(parts, axis=1, out=out)


def _signed_fields(values: Floats, kind: _Kind, largest_field: int) -> tuple[Floats, NDArray[np.int32]]:
    """As `_affine_fields`: the first value of the largest magnitude becomes `-largest_field`."""
    values = _of_blocks(values, kind.group)
    peak = largest(values)
    inverse = np.float32(-largest_field) / peak
    fields = np.clip(nearest(inverse * values), -largest_field, largest_field - 1).T
    fields[peak == 0] = -largest_field
    return np.where(peak == 0, peak, 1 / inverse), fields


def _encode_q3(search: ModuleType, tile: Floats, importance: Floats | None, kind: _Kind, out: Codes) -> None:
    x = _columns(tile, kind.group)
    if importance is None:
        scale, codes = search.descent(x, kind.levels)
        d, fields = _signed_fields(scale, kind, 32)
        scales = (fields + 32).astype(np.uint8)
    else:
        w, sums = _weighted(tile, importance, 2, kind.group)
        scale, codes = search.symmetric(x, w, kind.levels)
        d, scales = search.symmetric(_of_blocks(scale, kind.group), sums, 32)
        scales = scales.T
    d_bytes, d = kpack.half(d)
    stored = d * (scales.astype(np.float32) - np.float32(32))
    search.requantize(x, stored.reshape(-1), None, codes, -kind.levels, kind.levels - 1)
    codes = _rows(codes)
    parts = kpack.join(codes, 1, 1, 2), kpack.join(codes, 2, 2), kpack.scales_3(scales), d_bytes
    np.concatenate(parts, axis=1, out=out)


def _encode_q6(search: ModuleType, tile: Floats, importance: Floats | None, kind: _Kind, out: Codes) -> None:
    x = _columns(tile, kind.group)
    w = x * x if importance is None else _columns(importance, kind.group)
    scale, codes = search.symmetric(x, w, kind.levels)
    d, fields = _signed_fields(scale, kind, 128)
    d_bytes, d = kpack.half(d)
    search.requantize(x, (d * fields.astype(np.float32)).reshape(-1), None, codes, -kind.levels, kind.levels - 1)
    codes = _rows(codes)
    low = np.swapaxes(codes.reshape(-1, 2, 2, 2, 32), 2, 3).reshape(-1, 256)  # codes in one byte stand 64 apart
    scales = fields.astype(np.int8).view(np.uint8)
    parts = kpack.join(low, 4, 4), kpack.join(codes, 2, 2, 4), scales, d_bytes
    np.concatenate(parts, axis=1, out=out)
    out[np.fmax.reduce(np.abs(scale).reshape(-1, 16), axis=1, initial=np.float32(0)) < EPSILON] = 0
