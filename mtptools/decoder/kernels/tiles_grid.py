# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""ggml's IQ1, IQ2 and IQ3 types: indices into a grid of 4 or 8 values, and signs. The form of a tile: `tiles`.

The last plane is the grid, int8, for all rows. A superblock's 256 values come in eight parts of 32 columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import each, halves, one

__all__ = ["iq1_m", "iq1_s", "iq2_s", "iq2_xs", "iq2_xxs", "iq3_s", "iq3_xxs"]


@triton.jit
def _grid(table, index, width: tl.constexpr):
    """Column j of 32 is value j % width of entry `index` [rows, 32]."""
    return tl.load(table + index * width + (tl.arange(0, 32) % width)[None, :]).to(tl.float32)


@triton.jit
def _signed(values, octets):
    """Column j is negated where bit j % 8 of `octets` [rows, 32] is set. By a product: triton's minus is 0 - x."""
    minus = (octets >> (tl.arange(0, 32) % 8)[None, :]) & 1
    return values * (1 - 2 * minus).to(tl.float32)


@triton.jit
def _even(seven):
    """Seven signs and an eighth that makes the number of minuses even."""
    bits = seven & 127
    fold = bits ^ (bits >> 4)
    fold = fold ^ (fold >> 2)
    return bits | (((fold ^ (fold >> 1)) & 1) << 7)


@triton.jit
def _nibbles(scales, rows, k: tl.constexpr, step, part: tl.constexpr):
    """The two scales of a part, four bits each of a byte."""
    byte = one(scales, rows, k // 32, step * 8 + part).to(tl.int32)
    return (byte & 15).to(tl.float32), ((byte >> 4) & 15).to(tl.float32)


@triton.jit
def iq2_xxs(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """A word of four indices, and a word of four times seven signs and the scale."""
    step = first + number
    d = one(planes[0], rows, k // 256, step).to(tl.float32)
    indices = one(planes[1], rows, k // 16, step * 16 + part * 2)[:, None]
    signs = one(planes[1], rows, k // 16, step * 16 + part * 2 + 1)
    scale = (d * (0.5 + ((signs >> 28) & 15).to(tl.float32))) * 0.25
    quarter = (tl.arange(0, 32) // 8)[None, :]
    values = scale[:, None] * _grid(planes[2], (indices >> (quarter * 8)) & 255, 8)
    return _signed(values, _even(signs[:, None] >> (quarter * 7)))


@triton.jit
def iq2_xs(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Nine bits of index and seven signs for eight values."""
    step = first + number
    d = one(planes[0], rows, k // 256, step).to(tl.float32)
    low, high = _nibbles(planes[2], rows, k, step, part)
    scale = halves((d * (0.5 + low)) * 0.25, (d * (0.5 + high)) * 0.25)
    code = each(planes[1], rows, k // 8, step * 32 + part * 4, 8)
    return _signed(scale * _grid(planes[3], code & 511, 8), _even(code >> 9))


@triton.jit
def iq2_s(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Eight bits of index, two more for each of four in a byte, and eight signs."""
    step = first + number
    d = one(planes[0], rows, k // 256, step).to(tl.float32)
    low, high = _nibbles(planes[4], rows, k, step, part)
    scale = halves((d * (0.5 + low)) * 0.25, (d * (0.5 + high)) * 0.25)
    upper = one(planes[3], rows, k // 32, step * 8 + part).to(tl.int32)[:, None]
    upper = (upper >> (tl.arange(0, 32) // 8 * 2)[None, :]) & 3
    index = each(planes[1], rows, k // 8, step * 32 + part * 4, 8) | (upper << 8)
    signs = each(planes[2], rows, k // 8, step * 32 + part * 4, 8)
    return _signed(scale * _grid(planes[5], index, 8), signs)


@triton.jit
def iq3_xxs(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Eight indices of four values, and a word of four times seven signs and the scale."""
    step = first + number
    d = one(planes[0], rows, k // 256, step).to(tl.float32)
    signs = one(planes[2], rows, k // 32, step * 8 + part)
    scale = (d * (0.5 + ((signs >> 28) & 15).to(tl.float32))) * 0.5
    index = each(planes[1], rows, k // 4, step * 64 + part * 8, 4)
    seven = signs[:, None] >> (tl.arange(0, 32) // 8 * 7)[None, :]
    return _signed(scale[:, None] * _grid(planes[3], index, 4), _even(seven))


@triton.jit
def iq3_s(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Eight bits of index of four values, a ninth apart, and eight signs; two parts share a byte of scales."""
    step = first + number
    d = one(planes[0], rows, k // 256, step).to(tl.float32)
    scale = (one(planes[4], rows, k // 64, step * 4 + part // 2).to(tl.int32) >> (part % 2 * 4)) & 15
    ninth = one(planes[2], rows, k // 32, step * 8 + part).to(tl.int32)[:, None]
    ninth = (ninth >> (tl.arange(0, 32) // 4)[None, :]) & 1
    index = each(planes[1], rows, k // 4, step * 64 + part * 8, 4) | (ninth << 8)
    signs = each(planes[3], rows, k // 8, step * 32 + part * 4, 8)
    return _signed((d * (1 + 2 * scale).to(tl.float32))[:, None] * _grid(planes[5], index, 4), signs)


@triton.jit
def iq1_s(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Eight bits of index; in a word three more for each of four, the scale, and which way all values are shifted."""
    step = first + number
    d = one(planes[0], rows, k // 256, step).to(tl.float32)
    word = one(planes[2], rows, k // 32, step * 8 + part).to(tl.int32)
    scale = d * (2 * ((word >> 12) & 7) + 1).to(tl.float32)
    shift = tl.where((word & 0x8000) == 0, 0.125, -0.125)
    upper = (word[:, None] >> (tl.arange(0, 32) // 8 * 3)[None, :]) & 7
    index = each(planes[1], rows, k // 8, step * 32 + part * 4, 8) | (upper << 8)
    return scale[:, None] * (_grid(planes[3], index, 8) + shift[:, None])


@triton.jit
def iq1_m(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """As IQ1_S, with a scale for 16 values and a shift for 8; d is the upper four bits of four words."""
    step = first + number
    word = one(planes[2], rows, k // 64, step * 4).to(tl.int32)
    half = (word >> 12) & 15
    for i in tl.static_range(1, 4):
        word = one(planes[2], rows, k // 64, step * 4 + i).to(tl.int32)
        half = half | (((word >> 12) & 15) << (4 * i))
    d = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    scales = one(planes[2], rows, k // 64, step * 4 + part // 2).to(tl.int32) >> (part % 2 * 6)
    low = d * (2 * (scales & 7) + 1).to(tl.float32)
    high = d * (2 * ((scales >> 3) & 7) + 1).to(tl.float32)
    upper = each(planes[1], rows, k // 16, step * 16 + part * 2, 16)
    upper = upper >> (tl.arange(0, 32) // 8 % 2 * 4)[None, :]
    index = each(planes[0], rows, k // 8, step * 32 + part * 4, 8) | ((upper & 7) << 8)
    shift = tl.where((upper & 8) == 0, 0.125, -0.125)
    return halves(low, high) * (_grid(planes[3], index, 8) + shift)
