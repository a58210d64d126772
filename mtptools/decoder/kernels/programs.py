# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""The programs: a product, and a matrix's values. What a tile of each kind holds is `tiles`'."""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import narrow

__all__ = ["product", "values"]


# A number that is 1, or a multiple of 16, would be compiled into a program of its own.
@triton.jit(do_not_specialize=["m", "n", "stride", "at", "used"])
def product(
    x,
    planes,
    experts,
    out,
    m,
    n,
    stride,
    at,
    used,
    k: tl.constexpr,
    group: tl.constexpr,
    tile: tl.constexpr,
    step: tl.constexpr,
    parts: tl.constexpr,
    steps: tl.constexpr,
    block_n: tl.constexpr,
    dtype: tl.constexpr,
    alone: tl.constexpr,
):
    """out[r, at + c] = sum of x[r, i] w[c, i], for 16 rows and block_n columns a program.

    x        [m, k], of float32, which is rounded to `dtype` here, or of `dtype`;  out  float32 [m, stride]
    alone    a program has one row, of out, and takes the row of x that is `used` times less: [m / used, k]
    n        rows of w;  of one matrix of the stack, where there are several
    experts  int32, the matrix of each program's rows: [ceil(m / 16)], or [m] where each is alone; None: there is one
    tile     makes the values of w, `step` columns in `parts` parts; `steps` of them are under way at a time
    """
    width: tl.constexpr = step // parts
    lane = tl.arange(0, 16)
    r = tl.program_id(0) + lane if alone else tl.program_id(0) * 16 + lane
    c = tl.program_id(1) * block_n + tl.arange(0, block_n)
    rows = tl.minimum(c, n - 1).to(tl.int64)  # past the last row it is read again, and not stored
    if experts is not None:
        rows += tl.load(experts + tl.program_id(0)).to(tl.int64) * n
    here = (lane == 0)[:, None] if alone else (r < m)[:, None]
    x_rows = x + ((r // used if alone else r).to(tl.int64) * k)[:, None]
    acc = tl.full((16, block_n), 0.0, tl.float32)
    for span in range((k + step * steps - 1) // (step * steps)):
        for piece in tl.static_range(steps * parts):
            w = narrow(tile(planes, rows, k, group, span * steps, piece // parts, piece % parts, steps), dtype)
            i = (span * steps * parts + piece) * width + tl.arange(0, width)
            mask = here if k % step == 0 else here & (i < k)[None, :]
            a = narrow(tl.load(x_rows + i[None, :], mask=mask, other=0.0), dtype)
            acc = tl.dot(a, tl.trans(w), acc, input_precision="ieee")
    to = out + (r.to(tl.int64) * stride)[:, None] + (at + c)[None, :]
    tl.store(to, acc, mask=here & (c < n)[None, :])


@triton.jit(do_not_specialize=["n"])
def values(
    planes,
    out,
    n,
    k: tl.constexpr,
    group: tl.constexpr,
    tile: tl.constexpr,
    step: tl.constexpr,
    parts: tl.constexpr,
    block_n: tl.constexpr,
):
    """out[r, i] = w[r, i]; out is [n, k] of any float type, and values are rounded to it once."""
    width: tl.constexpr = step // parts
    number = tl.program_id(1)
    r = tl.program_id(0) * block_n + tl.arange(0, block_n)
    rows = tl.minimum(r, n - 1).to(tl.int64)
    for part in tl.static_range(parts):
        w = narrow(tile(planes, rows, k, group, number, 0, part, 1), out.dtype.element_ty)
        i = number * step + part * width + tl.arange(0, width)
        tl.store(out + (rows * k)[:, None] + i[None, :], w, mask=(r < n)[:, None] & (i < k)[None, :])
