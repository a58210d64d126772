# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""Device functions that the tiles share: loads, bits as whole numbers, and the rounding that the interpreter lacks.

A load that is to be under way while others are used is a copy to shared memory, of four bytes at least: fields of one
or two bytes are read as parts of words, where the compiler knows which parts.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

__all__ = [
    "INTERPRETED",
    "JOINED",
    "codes",
    "counted",
    "e4m3",
    "each",
    "floats",
    "four",
    "fused",
    "halves",
    "joined",
    "moved",
]
__all__ += ["narrow", "octet", "one", "piece", "short", "signed", "word"]

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""triton reads this variable where a function is decorated: it holds for all of this package's, from import on."""


@triton.jit
def one(plane, rows, stride: tl.constexpr, at):
    """Value `at` of each row of a plane of `stride` values a row: [rows]."""
    return tl.load(plane + rows * stride + at)


@triton.jit
def word(plane, rows, stride: tl.constexpr, at):
    """Word `at` of each row of a plane of `stride` words a row, of whatever type: int32 [rows]."""
    return tl.load(plane.to(tl.pointer_type(tl.int32)) + rows * stride + at)


@triton.jit
def short(plane, rows, stride: tl.constexpr, first, at: tl.constexpr, of: tl.constexpr):
    """Value first + at of each row of a plane of 16 bits a value: [rows].

    first  a multiple of `of`, of which rows are made; at < of

    Where it is not known which half of a word that is, the word is read if it is the lower one, and if it is the upper
    one: a shift by a number that only the program knows would not stay in registers (`tiles`).
    """
    if of % 2 == 0:
        bits = word(plane, rows, stride // 2, (first >> 1) + at // 2) >> (at % 2 * 16)
        out = bits.to(tl.int16).to(plane.dtype.element_ty, bitcast=True)
    elif stride % 2 == 0:
        number = first + at
        words = plane.to(tl.pointer_type(tl.int32)) + rows * (stride // 2) + (number >> 1)
        lower = tl.load(words, mask=number % 2 == 0, other=0)
        upper = tl.load(words, mask=number % 2 == 1, other=0)
        out = (lower | (upper >> 16)).to(tl.int16).to(plane.dtype.element_ty, bitcast=True)
    else:
        out = one(plane, rows, stride, first + at)
    return out


@triton.jit
def octet(plane, rows, stride: tl.constexpr, first, at: tl.constexpr, of: tl.constexpr):
    """Byte first + at of each row, without its sign: int32 [rows]. first, of: as of `short`."""
    if of % 4 == 0:
        bits = word(plane, rows, stride // 4, (first >> 2) + at // 4) >> (at % 4 * 8)
    else:
        bits = one(plane, rows, stride, first + at).to(tl.int32)
    return bits & 255


@triton.jit
def piece(plane, rows, stride: tl.constexpr, at, width: tl.constexpr):
    """Values at, at + 1 … of each row: [rows, width]."""
    return tl.load(plane + (rows * stride)[:, None] + (at + tl.arange(0, width))[None, :])


@triton.jit
def each(plane, rows, stride: tl.constexpr, at, times: tl.constexpr):
    """Values at, at + 1 … of each row, as integers, each `times` over: int32 [rows, 32]."""
    return tl.load(plane + (rows * stride)[:, None] + (at + tl.arange(0, 32) // times)[None, :]).to(tl.int32)


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
def counted(bits, less):
    """bits - less as float32, of int32 0 <= bits < 2 ** 22, less < 2 ** 22.

    From 2 ** 23 on float32 counts by ones: an "or" and a sum. Instructions that convert run at a quarter of their rate.
    """
    return (bits | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + less)


JOINED = tl.constexpr("""{
    .reg .b32 codes, more, by;
    and.b32 by, $5, 31;  shf.l.wrap.b32 codes, $4, $4, by;  and.b32 codes, codes, $6;
    and.b32 by, $8, 31;  shf.l.wrap.b32 more, $7, $7, by;  and.b32 more, more, $9;
    or.b32 codes, codes, more;  xor.b32 codes, codes, $10;
    prmt.b32 $0, codes, 0x4B000000, 0x7440;
    prmt.b32 $1, codes, 0x4B000000, 0x7441;
    prmt.b32 $2, codes, 0x4B000000, 0x7442;
    prmt.b32 $3, codes, 0x4B000000, 0x7443;
}""")
"""Four bytes in one register, which the compiler does not see by itself: turned, masked, joined, each then counted.

$4 and $7 are four bytes each. The others are known to the assembler, one number four times over: bits to turn by to the
left ($5, $8), bits to take ($6, $9), bits to turn over in the end ($10)."""


@triton.jit
def four(octets, up, mask, more, more_up, more_mask, flip):
    """By `JOINED`: int32 bits of the float32 2 ** 23 + n."""
    a, b = octets.to(tl.uint8, bitcast=True), more.to(tl.uint8, bitcast=True)
    turn, turn_more = tl.full(a.shape, up % 32, tl.uint8), tl.full(a.shape, more_up % 32, tl.uint8)
    take, take_more = tl.full(a.shape, mask, tl.uint8), tl.full(a.shape, more_mask, tl.uint8)
    given = [a, turn, take, b, turn_more, take_more, tl.full(a.shape, flip, tl.uint8)]
    return tl.inline_asm_elementwise(JOINED, "=r,=r,=r,=r,r,r,r,r,r,r,r", given, tl.int32, is_pure=True, pack=4)


@triton.jit
def moved(octets, up, mask):
    """octets << up & mask, int32;  -8 < up < 8, below zero to the right;  mask  of bits that stay in their byte"""
    wide = octets.to(tl.int32)
    return (wide << up if up >= 0 else wide >> -up) & mask


@triton.jit
def codes(octets, up, mask, less):
    """`moved` - less, as float32. All but the bytes are known to the compiler. The interpreter has no assembler."""
    if INTERPRETED:
        out = moved(octets, up, mask).to(tl.float32) - less
    else:
        out = four(octets, up, mask, octets, 0, 0, 0).to(tl.float32, bitcast=True) - (8388608.0 + less)
    return out


@triton.jit
def joined(octets, up, mask, more, more_up, more_mask, less):
    """`codes` with bits of a second tensor of bytes among them."""
    if INTERPRETED:
        out = (moved(octets, up, mask) | moved(more, more_up, more_mask)).to(tl.float32) - less
    else:
        bits = four(octets, up, mask, more, more_up, more_mask, 0)
        out = bits.to(tl.float32, bitcast=True) - (8388608.0 + less)
    return out


@triton.jit
def signed(octets):
    """int8 as float32."""
    if INTERPRETED:
        out = octets.to(tl.float32)
    else:
        out = four(octets, 0, 255, octets, 0, 0, 128).to(tl.float32, bitcast=True) - 8388736.0  # 2 ** 23 + 128
    return out


@triton.jit
def fused(q, scale, more):
    """q scale + more, where q scale is exact in float32: it is rounded once then, fused or not."""
    return tl.fma(q, scale, more)


@triton.jit
def e4m3(code):
    """The magnitude of int32 F8_E4M3 codes, NaN not regarded: their bits as float32's, 120 exponents too low."""
    return ((code & 127) << 20).to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120


@triton.jit
def narrow(values, dtype: tl.constexpr):
    """Values rounded once to dtype, to nearest even.

    The interpreter cuts where it should round to bfloat16, and multiplies bfloat16 as integers: there the values stay
    float32. Products of two of them are exact either way.
    """
    if INTERPRETED and tl.bfloat16 == dtype:
        wide = values if values.dtype == tl.float32 else values.to(tl.float32)
        bits = wide.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        out = tl.where(wide == wide, bits.to(tl.float32, bitcast=True), wide)
    else:
        out = values.to(dtype)
    return out
