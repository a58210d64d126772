# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""The programs between attention's first product and its scores: heads normed and turned, keys and values kept.

A program has one row and one head: nothing else can be in its arithmetic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import narrow
from mtptools.decoder.kernels.programs_attention import PAGE, SUM

__all__ = ["place", "write"]

HALF_MAX = tl.constexpr(65504.0)


@triton.jit
def keep(pages, slot, head, width: tl.constexpr, column, values, mask, cached: tl.constexpr):
    """Store columns of a slot, rounded to the cache's type; beyond a half's range they are cut, as `KVCache.stored`."""
    page = tl.multiple_of(tl.load(pages + slot // PAGE).to(tl.pointer_type(cached)), 16)
    if tl.float16 == cached:  # not minimum and maximum, which lose a NaN
        values = tl.where(values > HALF_MAX, HALF_MAX, tl.where(values < -HALF_MAX, -HALF_MAX, values))
    tl.store(page + (head * PAGE + slot % PAGE) * width + column, narrow(values, cached), mask=mask)


# A number that is 1, or a multiple of 16, or an address that is not one, would be compiled into a program of its own.
@triton.jit(do_not_specialize=["pages", "positions", "row_stride", "head_stride"])
def write(
    rows,
    pages,
    positions,
    row_stride,
    head_stride,
    cached: tl.constexpr,
    width: tl.constexpr,
    padded: tl.constexpr,
):
    """Row program_id(0) of rows, float32 [rows, kv_heads, width], head program_id(1), into its slot.

    pages  int64 [chunks]: where a chunk of the cache is, [kv_heads, 64, width] of type `cached`
    positions  int64 [rows]: slots
    """
    r, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, padded)
    has = column < width
    values = tl.load(rows + r * row_stride + head * head_stride + column, mask=has, other=0.0)
    keep(pages, tl.load(positions + r), head, width, column, values, has, cached)


@triton.jit(do_not_specialize=["pages", "positions", "offset", "plane"])
def place(
    fused,
    norm,
    table,
    queries,
    pages,
    positions,
    offset,
    plane,
    eps,
    scale,
    cached: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    total: tl.constexpr,
    head_dim: tl.constexpr,
    dim: tl.constexpr,
    adjacent: tl.constexpr,
    padded: tl.constexpr,
):
    """Head program_id(1) of a row: a query to `queries`, or a key, and its value with it, to the cache.

    fused    float32 [rows, total, head_dim]: `heads` queries, `kv_heads` keys …, `kv_heads` values
    norm     float32 [heads + kv_heads, head_dim]: factors of the norms; None: there are none
    table    float32 [2, capacity, dim / 2]: cos, sin of a position's angles;  plane  capacity * dim / 2
    queries  float32 [rows, heads, head_dim], normed, turned, times scale
    pages    int64 [chunks]: where a chunk of the cache is, [kv_heads, 64, 2 * head_dim] of type `cached`
    positions  int64 [rows]: slots; the position in `table` is `offset` more
    adjacent   pairs are values 2 i and 2 i + 1; else i and i + dim / 2
    """
    half: tl.constexpr = dim // 2
    r, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, padded)
    has, turns = column < head_dim, column < dim
    if adjacent:
        pair, first, partner = column // 2, column % 2 == 0, column ^ 1
    else:
        pair, first = column % half, column < half
        partner = tl.where(first, column + half, column - half)

    row = fused + r * (total * head_dim)
    x = tl.load(row + head * head_dim + column, mask=has, other=0.0)
    other = tl.load(row + head * head_dim + partner, mask=turns, other=0.0)
    if norm is not None:
        size = tl.div_rn(1.0, tl.sqrt_rn(tl.reduce(x * x, 0, SUM) * (1.0 / head_dim) + eps))
        x = x * size * tl.load(norm + head * head_dim + column, mask=has, other=0.0)
        other = other * size * tl.load(norm + head * head_dim + partner, mask=turns, other=0.0)

    slot = tl.load(positions + r)
    angle = table + (slot + offset) * half + pair
    cos = tl.load(angle, mask=turns, other=1.0)
    sin = tl.load(angle + plane, mask=turns, other=0.0)
    turned = tl.where(first, x * cos - other * sin, x * cos + other * sin)
    x = tl.where(turns, turned, x)

    if head < heads:
        tl.store(queries + (r * heads + head) * head_dim + column, x * scale, mask=has)
    else:
        kv = head - heads
        value = tl.load(row + (total - kv_heads + kv) * head_dim + column, mask=has, other=0.0)
        keep(pages, slot, kv, 2 * head_dim, column, x, has, cached)
        keep(pages, slot, kv, 2 * head_dim, head_dim + column, value, has, cached)
