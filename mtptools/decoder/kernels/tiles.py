# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""Values of a piece of a matrix, in float32: one function for each kind. Here floats, and blocks of 32 values.

    tile(planes, rows, k, group, step, part) -> float32 [rows, width]

planes  the slab's;  rows  int64, their numbers;  k  columns of the matrix;  group  the slab's
step    which step of the row, and `part` of it (known to the compiler). A step's columns and its parts: `KINDS`.

Products and sums are rounded one by one in the order of gguf-py, so values are bit-equal to it: programs are compiled
without fused multiply-adds. Integers are widened before shifts, whose results are then the same signed or not.
Block layouts: ggml's ggml-common.h.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import floats, nibbles, one, piece

__all__ = ["bf16", "plain", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0"]


@triton.jit
def plain(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """F32 and F16; past the last column, zeros."""
    return floats(planes[0], rows, k, step).to(tl.float32)


@triton.jit
def bf16(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """The upper halves of float32."""
    return (floats(planes[0], rows, k, step).to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def q8_0(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[0], rows, k // 32, step).to(tl.float32)
    return piece(planes[1], rows, k, step * 32, 32).to(tl.float32) * d[:, None]


@triton.jit
def q4_0(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[0], rows, k // 32, step).to(tl.float32)
    return d[:, None] * (nibbles(planes[1], rows, k // 2, step * 16) - 8).to(tl.float32)


@triton.jit
def q4_1(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[0], rows, k // 32, step).to(tl.float32)
    low = one(planes[1], rows, k // 32, step).to(tl.float32)
    return d[:, None] * nibbles(planes[2], rows, k // 2, step * 16).to(tl.float32) + low[:, None]


@triton.jit
def _five(high, codes, rows, k: tl.constexpr, step):
    """Codes of five bits: the fifth ones of a block are the bits of one word."""
    fifth = (one(high, rows, k // 32, step)[:, None] >> tl.arange(0, 32)[None, :]) & 1
    return nibbles(codes, rows, k // 2, step * 16) | (fifth << 4)


@triton.jit
def q5_0(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[0], rows, k // 32, step).to(tl.float32)
    return d[:, None] * (_five(planes[1], planes[2], rows, k, step) - 16).to(tl.float32)


@triton.jit
def q5_1(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[0], rows, k // 32, step).to(tl.float32)
    low = one(planes[1], rows, k // 32, step).to(tl.float32)
    return d[:, None] * _five(planes[2], planes[3], rows, k, step).to(tl.float32) + low[:, None]


@triton.jit
def tq2_0(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[1], rows, k // 256, step).to(tl.float32)
    q = (piece(planes[0], rows, k // 4, step * 64 + part // 4 * 32, 32) >> (part % 4 * 2)) & 3
    return d[:, None] * (q - 1).to(tl.float32)


@triton.jit
def tq1_0(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """Digits of base 3, first one first: 32 bytes of five, 16 bytes of five, 4 bytes of four; parts of 16 values.

    A byte is a fraction of 256, so the digit wanted is brought up front by a product that wraps around.
    """
    d = one(planes[2], rows, k // 256, step).to(tl.float32)
    if part < 10:
        octets = piece(planes[0], rows, k // 256 * 48, step * 48 + part % 2 * 16, 16) * 3 ** (part // 2)
    elif part < 15:
        octets = piece(planes[0], rows, k // 256 * 48, step * 48 + 32, 16) * 3 ** (part - 10)
    else:
        column = tl.arange(0, 16)
        powers = tl.where(column < 8, tl.where(column < 4, 1, 3), tl.where(column < 12, 9, 27))
        last = tl.load(planes[1] + (rows * (k // 64))[:, None] + (step * 4 + column % 4)[None, :])
        octets = last.to(tl.int32) * powers[None, :]
    return d[:, None] * ((((octets & 255) * 3) >> 8) - 1).to(tl.float32)
