# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""K-quants: superblocks of 256 values, in parts that have one scale. The form of a tile: `tiles`.

A scale is a float16 times six bits, or eight; times a code of at most six bits that is exact in float32. A minimum is
taken off by adding its negative, made by a product: triton's minus is 0 - x, whose zero has another sign.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import codes, fused, joined, octet, piece, short, word

__all__ = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]


@triton.jit
def q2_k(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Two bits; scale and minimum of 16 values in the halves of a byte."""
    step = first + number
    both = octet(planes[0], rows, k // 16, step * 16, part, 16)
    d = short(planes[2], rows, k // 256, first, number, steps).to(tl.float32) * (both & 15).to(tl.float32)
    low = short(planes[3], rows, k // 256, first, number, steps).to(tl.float32) * -1.0 * (both >> 4).to(tl.float32)
    octets = piece(planes[1], rows, k // 4, step * 64 + part // 8 * 32 + part % 2 * 16, 16)
    return fused(codes(octets, -(part % 8 // 2 * 2), 3, 0), d[:, None], low[:, None])


@triton.jit
def _scale_3(scales, rows, k: tl.constexpr, step, part: tl.constexpr):
    """Of twelve bytes: four bits in the first eight, two in the last four; 32 is taken off."""
    lower = word(scales, rows, k // 256 * 3, step * 3 + part % 8 // 4) >> (part % 4 * 8 + part // 8 * 4)
    upper = word(scales, rows, k // 256 * 3, step * 3 + 2) >> (part % 4 * 8 + part // 4 * 2)
    return (((lower & 15) | ((upper & 3) << 4)) - 32).to(tl.float32)


@triton.jit
def q3_k(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Two bits, a third apart; a scale of 16 values has six bits."""
    step = first + number
    d = short(planes[3], rows, k // 256, first, number, steps).to(tl.float32) * _scale_3(planes[2], rows, k, step, part)
    octets = piece(planes[1], rows, k // 4, step * 64 + part // 8 * 32 + part % 2 * 16, 16)
    thirds = piece(planes[0], rows, k // 8, step * 32 + part % 2 * 16, 16)
    return d[:, None] * joined(octets, -(part % 8 // 2 * 2), 3, thirds, 2 - part // 2, 4, 4)


@triton.jit
def _scale_min(words, rows, k: tl.constexpr, step, part: tl.constexpr):
    """Scale and minimum of a part, six bits each, of three words; the last four have their upper bits in the first."""
    scales = word(words, rows, k // 256 * 3, step * 3)
    minima = word(words, rows, k // 256 * 3, step * 3 + 1)
    if part >= 4:
        lower = word(words, rows, k // 256 * 3, step * 3 + 2)
        scales = (lower & 0x0F0F0F0F) | ((scales >> 2) & 0x30303030)
        minima = ((lower >> 4) & 0x0F0F0F0F) | ((minima >> 2) & 0x30303030)
    at: tl.constexpr = part % 4 * 8
    return ((scales >> at) & 63).to(tl.float32), ((minima >> at) & 63).to(tl.float32)


@triton.jit
def q4_k(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    step = first + number
    scale, minimum = _scale_min(planes[2], rows, k, step, part)
    d = short(planes[0], rows, k // 256, first, number, steps).to(tl.float32) * scale
    low = short(planes[1], rows, k // 256, first, number, steps).to(tl.float32) * -1.0 * minimum
    octets = piece(planes[3], rows, k // 2, step * 128 + part // 2 * 32, 32)
    return fused(codes(octets, -(part % 2 * 4), 15, 0), d[:, None], low[:, None])


@triton.jit
def q5_k(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """As Q4_K, and bit `part` of another byte is the fifth."""
    step = first + number
    scale, minimum = _scale_min(planes[2], rows, k, step, part)
    d = short(planes[0], rows, k // 256, first, number, steps).to(tl.float32) * scale
    low = short(planes[1], rows, k // 256, first, number, steps).to(tl.float32) * -1.0 * minimum
    octets = piece(planes[4], rows, k // 2, step * 128 + part // 2 * 32, 32)
    fifths = piece(planes[3], rows, k // 8, step * 32, 32)
    q = joined(octets, -(part % 2 * 4), 15, fifths, 4 - part, 16, 0)
    return fused(q, d[:, None], low[:, None])


@triton.jit
def q6_k(planes, rows, k: tl.constexpr, group, first, number: tl.constexpr, part: tl.constexpr, steps: tl.constexpr):
    """Four bits, and two more of other bytes."""
    step = first + number
    scale = octet(planes[2], rows, k // 16, step * 16, part, 16).to(tl.int8).to(tl.float32)
    d = short(planes[3], rows, k // 256, first, number, steps).to(tl.float32) * scale
    octets = piece(planes[0], rows, k // 2, step * 128 + part // 8 * 64 + part % 4 * 16, 16)
    upper = piece(planes[1], rows, k // 4, step * 64 + part // 8 * 32 + part % 2 * 16, 16)
    return d[:, None] * joined(octets, -(part % 8 // 4 * 4), 15, upper, 4 - part % 8 // 2 * 2, 48, 32)
