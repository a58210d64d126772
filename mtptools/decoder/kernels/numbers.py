# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""Device functions that the tiles share: loads, and the rounding that the interpreter lacks."""

from __future__ import annotations

import os

import triton
import triton.language as tl

__all__ = ["INTERPRETED", "e4m3", "each", "floats", "halves", "narrow", "nibbles", "one", "piece"]

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""triton reads this variable where a function is decorated: it holds for all of this package's, from import on."""


@triton.jit
def one(plane, rows, stride: tl.constexpr, at):
    """Value `at` of each row of a plane of `stride` values a row: [rows]."""
    return tl.load(plane + rows * stride + at)


@triton.jit
def piece(plane, rows, stride: tl.constexpr, at, width: tl.constexpr):
    """Values at, at + 1 … of each row, as integers: int32 [rows, width]."""
    return tl.load(plane + (rows * stride)[:, None] + (at + tl.arange(0, width))[None, :]).to(tl.int32)


@triton.jit
def each(plane, rows, stride: tl.constexpr, at, times: tl.constexpr):
    """Values at, at + 1 … of each row, as integers, each `times` over: int32 [rows, 32]."""
    return tl.load(plane + (rows * stride)[:, None] + (at + tl.arange(0, 32) // times)[None, :]).to(tl.int32)


@triton.jit
def nibbles(plane, rows, stride: tl.constexpr, at):
    """32 codes of 16 bytes, at, at + 1 …: byte j holds code j, and above it j + 16. int32 [rows, 32]

    Each byte is read twice, so that a piece has the 32 columns of a whole scale.
    """
    column = tl.arange(0, 32)
    octets = tl.load(plane + (rows * stride)[:, None] + (at + column % 16)[None, :]).to(tl.int32)
    return (octets >> (column // 16 * 4)[None, :]) & 15


@triton.jit
def floats(plane, rows, k: tl.constexpr, step):
    """64 values of each row, [rows, 64]; zeros past the last of k columns."""
    columns = step * 64 + tl.arange(0, 64)
    at = plane + (rows * k)[:, None] + columns[None, :]
    return tl.load(at) if k % 64 == 0 else tl.load(at, mask=(columns < k)[None, :], other=0)


@triton.jit
def halves(first, second):
    """[rows] and [rows] as [rows, 32]: the one for columns 0 to 15, the other for 16 to 31."""
    return tl.where((tl.arange(0, 32) < 16)[None, :], first[:, None], second[:, None])


@triton.jit
def e4m3(code):
    """The magnitude of int32 F8_E4M3 codes, NaN not regarded: their bits as float32's, 120 exponents too low."""
    return ((code & 127) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120


@triton.jit
def narrow(values, dtype: tl.constexpr):
    """float32 rounded once to dtype, to nearest even.

    The interpreter cuts where it should round to bfloat16, and multiplies bfloat16 as integers: there the values stay
    float32. Products of two of them are exact either way.
    """
    if INTERPRETED and tl.bfloat16 == dtype:
        bits = values.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        out = tl.where(values == values, bits.to(tl.float32, bitcast=True), values)
    else:
        out = values.to(dtype)
    return out
