# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""Codes that stand for values of a short list: FP4 and FP8 under scales, and ggml's 16 uneven steps; MLX's affine mode.

The form of a tile: `tiles`. No list is read from memory. Of blocks of 32 codes
byte j of 16 holds code j, and above it j + 16: a part is one or the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import (
    INTERPRETED,
    codes,
    e4m3,
    four,
    halves,
    moved,
    narrow,
    octet,
    one,
    piece,
    short,
)

__all__ = ["f8_block", "fp4_e8m0", "iq4_nl", "iq4_xs", "mlx_4", "mlx_8", "mxfp4", "nvfp4"]


UNEVEN = tl.constexpr("""{
    .reg .b32 codes, pairs, low, high, which;
    and.b32 which, $5, 31;  shf.l.wrap.b32 codes, $4, $4, which;  and.b32 codes, codes, 0x0F0F0F0F;
    shr.u32 pairs, codes, 4;  or.b32 pairs, pairs, codes;  prmt.b32 codes, pairs, 0, 0x4420;
    and.b32 which, codes, 0x7777;
    prmt.b32 low, 0x3F2D1801, 0x766A5D4F, which;  prmt.b32 high, 0xA6998D81, 0xF1D9C5B5, which;
    and.b32 which, codes, 0x8888;  shr.u32 which, which, 1;  or.b32 which, which, 0x3210;
    prmt.b32 codes, low, high, which;
    prmt.b32 $0, codes, 0x4B000000, 0x7440;
    prmt.b32 $1, codes, 0x4B000000, 0x7441;
    prmt.b32 $2, codes, 0x4B000000, 0x7442;
    prmt.b32 $3, codes, 0x4B000000, 0x7443;
}""")
"""ggml's kvalues_iq4nl, 128 more, of four bytes in one register, as `numbers.JOINED`.

A permutation of bytes looks up four of eight values at a time. Four codes side by side say by their lower three bits
which, and by the upper one of which eight.
"""


@triton.jit
def _uneven(octets, half: tl.constexpr):
    """-127 -104 -83 -65 -49 -35 -22 -10, 1 13 25 38 53 69 89 113, of the lower halves of bytes, or the upper ones."""
    if INTERPRETED:
        code = moved(octets, -4 * half, 15)
        eight = tl.where(code < 8, -0x091522304052677F, 0x7159453526190D01)
        out = (eight >> ((code & 7) * 8).to(tl.int64)).to(tl.int8).to(tl.float32)
    else:
        turn = tl.full(octets.shape, 28 * half, tl.uint8)
        bits = tl.inline_asm_elementwise(UNEVEN, "=r,=r,=r,=r,r,r", [octets, turn], tl.int32, is_pure=True, pack=4)
        out = bits.to(tl.float32, bitcast=True) - 8388736.0  # 2 ** 23 + 128
    return out


@triton.jit
def _e2m1(octets, half: tl.constexpr):
    """Values of E2M1 codes, 126 exponents too low: sign, two bits of exponent, one of mantissa where float32 has them.

    A product shifts a code by 22 and by 28, and what `four` has above it away.
    """
    if INTERPRETED:
        bits = moved(octets, -4 * half, 15) * 0x10400000
    else:
        bits = four(octets, -4 * half, 15, octets, 0, 0, 0) * 0x10400000
    return (bits & -0x7E400000).to(tl.float32, bitcast=True)


@triton.jit
def iq4_nl(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    d = short(planes[0], rows, k // 32, first, number, steps).to(tl.float32)
    return d[:, None] * _uneven(piece(planes[1], rows, k // 2, (first + number) * 16, 16), part)


@triton.jit
def iq4_xs(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Two parts have a scale of six bits, less 32."""
    step = first + number
    lower = octet(planes[2], rows, k // 64, step * 4, part // 4, 4) >> (part // 2 % 2 * 4)
    upper = short(planes[1], rows, k // 256, first, number, steps).to(tl.int32) >> (part // 2 * 2)
    scale = (((lower & 15) | ((upper & 3) << 4)) - 32).to(tl.float32)
    d = short(planes[0], rows, k // 256, first, number, steps).to(tl.float32) * scale
    return d[:, None] * _uneven(piece(planes[3], rows, k // 2, step * 128 + part // 2 * 16, 16), part % 2)


@triton.jit
def mxfp4(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """GGUF's: half the scale times twice the value, which has no minus zero; exponents 0 and 1 are subnormal."""
    e = octet(planes[0], rows, k // 32, first, number, steps)
    half = tl.where(e < 2, 0x200000 << e, (e - 1) << 23).to(tl.float32, bitcast=True)
    value = _e2m1(piece(planes[1], rows, k // 2, (first + number) * 16, 16), part)
    return half[:, None] * tl.fma(value, 1.7014118346046923e38, 0.0)  # 2 ** 127; and a sum that makes zeros plus


@triton.jit
def fp4_e8m0(
    planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr
):
    """Hugging Face's and MLX's: there is a minus zero."""
    e = octet(planes[0], rows, k // 32, first, number, steps)
    scale = tl.where(e == 0, 0x400000, e << 23).to(tl.float32, bitcast=True)
    value = _e2m1(piece(planes[1], rows, k // 2, (first + number) * 16, 16), part)
    return (value * 8.507059173023462e37) * scale[:, None]  # 2 ** 126


@triton.jit
def _half_e4m3(code):
    return tl.where(code == 127, 0.0, e4m3(code) * 0.5)


@triton.jit
def _doubled(code):
    """Twice the value of E2M1 codes, as integers: 0 1 2 3 4 6 8 12, then the same below zero."""
    size = (-0x379BCDF0 >> ((code & 7) * 4)) & 15
    return tl.where(code < 8, size, -size)


@triton.jit
def nvfp4(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """GGUF's: four groups of 16 values in a block, two in a part; half an unsigned E4M3 each, whose NaN is 0."""
    step = first + number
    low = _half_e4m3(one(planes[0], rows, k // 16, step * 4 + part * 2).to(tl.int32))
    high = _half_e4m3(one(planes[0], rows, k // 16, step * 4 + part * 2 + 1).to(tl.int32))
    column = tl.arange(0, 32)
    at = planes[1] + (rows * (k // 2))[:, None] + (step * 32 + part * 16 + column // 16 * 8 + column % 8)[None, :]
    q = (tl.load(at).to(tl.int32) >> (column % 16 // 8 * 4)[None, :]) & 15
    return halves(low, high) * _doubled(q).to(tl.float32)


@triton.jit
def _of_group(plane, rows, k: tl.constexpr, group: tl.constexpr, first, number: tl.constexpr, steps):
    """The scale of a step of 32 columns, of any float type, as float32: [rows]."""
    groups: tl.constexpr = (k + group - 1) // group
    static: tl.constexpr = steps * 32 % group == 0
    of: tl.constexpr = steps * 32 // group if static else 1
    at: tl.constexpr = number * 32 // group if static else 0
    start = (first if static else first + number) * 32 // group
    if tl.float32 == plane.dtype.element_ty:  # triton 3.3 compares types this way round
        out = one(plane, rows, groups, start + at)
    else:
        out = short(plane, rows, groups, start, at, of).to(tl.float32)
    return out


@triton.jit
def f8_block(
    planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr
):
    """E4M3 codes, and a float32 scale for `group` columns of a row. The one magnitude above 448 is NaN."""
    scale = _of_group(planes[1], rows, k, group, first, number, steps)
    octets = piece(planes[0], rows, k, (first + number) * 32, 32).to(tl.int8, bitcast=True)
    bits = (octets.to(tl.int32) << 20) & -0x78100000  # the sign, which is in the upper bits too, and what is below it
    value = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    return tl.where(tl.abs(value) > 448.0, float("nan"), value) * scale[:, None]


@triton.jit
def _affine(planes, q, rows, k: tl.constexpr, group: tl.constexpr, first, number: tl.constexpr, steps):
    """MLX's affine mode: the product and the sum are each rounded to the type that the scales have."""
    scale = _of_group(planes[0], rows, k, group, first, number, steps)
    bias = _of_group(planes[1], rows, k, group, first, number, steps)
    dtype: tl.constexpr = planes[0].dtype.element_ty
    product = narrow(q * scale[:, None], dtype).to(tl.float32)
    return narrow(product + bias[:, None], dtype).to(tl.float32)


@triton.jit
def mlx_4(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    q = codes(piece(planes[2], rows, k // 2, (first + number) * 16, 16), -4 * part, 15, 0)
    return _affine(planes, q, rows, k, group, first, number, steps)


@triton.jit
def mlx_8(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    q = codes(piece(planes[2], rows, k, (first + number) * 32, 32), 0, 255, 0)
    return _affine(planes, q, rows, k, group, first, number, steps)
