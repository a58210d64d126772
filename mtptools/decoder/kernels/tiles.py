# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""Values of a piece of a matrix, in float32: one function for each kind. Here floats, and blocks of 32 values.

    tile(planes, rows, k, group, first, number, part, steps) -> float32 [rows, width]

planes  the slab's;  rows  int64, their numbers;  k  columns of the matrix;  group  the slab's
first   a step of the row, a multiple of `steps`;  first + number  the step that is wanted, and `part` of it: all but
        `first` are known to the compiler. A step's columns and its parts: `KINDS`.

Products and sums are rounded one by one in the order of gguf-py, so values are bit-equal to it: programs are compiled
without fused multiply-adds, but those that are asked for where a product is exact (`fused`). Integers are widened
before shifts, whose results are then the same signed or not. Block layouts: ggml's ggml-common.h.

A piece that is made the same way in all of its columns stays in registers from its bytes to the product. One whose
columns differ (by `halves`, `each`, anything of `tl.arange`) goes through shared memory, and the program waits for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import INTERPRETED, codes, counted, floats, one, piece, short, signed

__all__ = ["bf16", "plain", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0"]


@triton.jit
def plain(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """F32 and F16; past the last column, zeros."""
    return floats(planes[0], rows, k, first + number).to(tl.float32)


@triton.jit
def bf16(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """The upper halves of float32; compiled, bfloat16 as it is."""
    bits = floats(planes[0], rows, k, first + number)
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True) if INTERPRETED else bits.to(tl.bfloat16, bitcast=True)


@triton.jit
def q8_0(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    d = short(planes[0], rows, k // 32, first, number, steps).to(tl.float32)
    return signed(piece(planes[1], rows, k, (first + number) * 32, 32)) * d[:, None]


@triton.jit
def q4_0(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Byte j of 16 holds code j, and above it j + 16: a part is one or the other."""
    d = short(planes[0], rows, k // 32, first, number, steps).to(tl.float32)
    octets = piece(planes[1], rows, k // 2, (first + number) * 16, 16)
    return d[:, None] * codes(octets, -4 * part, 15, 8)


@triton.jit
def q4_1(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    d = short(planes[0], rows, k // 32, first, number, steps).to(tl.float32)
    low = short(planes[1], rows, k // 32, first, number, steps).to(tl.float32)
    octets = piece(planes[2], rows, k // 2, (first + number) * 16, 16)
    return d[:, None] * codes(octets, -4 * part, 15, 0) + low[:, None]


@triton.jit
def _five(high, low, rows, k: tl.constexpr, step, part: tl.constexpr):
    """Codes of five bits: the fifth ones of a block are the bits of one word."""
    fifth = (one(high, rows, k // 32, step)[:, None] >> (part * 16 + tl.arange(0, 16))[None, :]) & 1
    return ((piece(low, rows, k // 2, step * 16, 16).to(tl.int32) >> (4 * part)) & 15) | (fifth << 4)


@triton.jit
def q5_0(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    d = short(planes[0], rows, k // 32, first, number, steps).to(tl.float32)
    return d[:, None] * counted(_five(planes[1], planes[2], rows, k, first + number, part), 16)


@triton.jit
def q5_1(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    d = short(planes[0], rows, k // 32, first, number, steps).to(tl.float32)
    low = short(planes[1], rows, k // 32, first, number, steps).to(tl.float32)
    return d[:, None] * counted(_five(planes[2], planes[3], rows, k, first + number, part), 0) + low[:, None]


@triton.jit
def tq2_0(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    d = short(planes[1], rows, k // 256, first, number, steps).to(tl.float32)
    octets = piece(planes[0], rows, k // 4, (first + number) * 64 + part // 4 * 32, 32)
    return d[:, None] * codes(octets, -(part % 4 * 2), 3, 1)


@triton.jit
def tq1_0(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Digits of base 3, first one first: 32 bytes of five, 16 bytes of five, 4 bytes of four; parts of 16 values.

    A byte is a fraction of 256, so the digit wanted is brought up front by a product that wraps around.
    """
    step = first + number
    d = short(planes[2], rows, k // 256, first, number, steps).to(tl.float32)
    if part < 10:
        octets = piece(planes[0], rows, k // 256 * 48, step * 48 + part % 2 * 16, 16).to(tl.int32) * 3 ** (part // 2)
    elif part < 15:
        octets = piece(planes[0], rows, k // 256 * 48, step * 48 + 32, 16).to(tl.int32) * 3 ** (part - 10)
    else:
        column = tl.arange(0, 16)
        powers = tl.where(column < 8, tl.where(column < 4, 1, 3), tl.where(column < 12, 9, 27))
        last = tl.load(planes[1] + (rows * (k // 64))[:, None] + (step * 4 + column % 4)[None, :])
        octets = last.to(tl.int32) * powers[None, :]
    return d[:, None] * counted(((octets & 255) * 3) >> 8, 1)
