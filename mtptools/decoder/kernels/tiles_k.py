# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""K-quants: superblocks of 256 values, in eight parts of 32 columns. The form of a tile: `tiles`."""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import halves, one, piece

__all__ = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]


@triton.jit
def q2_k(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[2], rows, k // 256, step).to(tl.float32)
    d_low = one(planes[3], rows, k // 256, step).to(tl.float32)
    first = one(planes[0], rows, k // 16, step * 16 + part * 2).to(tl.int32)
    second = one(planes[0], rows, k // 16, step * 16 + part * 2 + 1).to(tl.int32)
    scale = halves(d * (first & 15).to(tl.float32), d * (second & 15).to(tl.float32))
    low = halves(d_low * (first >> 4).to(tl.float32), d_low * (second >> 4).to(tl.float32))
    q = (piece(planes[1], rows, k // 4, step * 64 + part // 4 * 32, 32) >> (part % 4 * 2)) & 3
    return scale * q.to(tl.float32) - low


@triton.jit
def _scale_3(scales, rows, k: tl.constexpr, step, number: tl.constexpr):
    """Scale 0 to 15 of twelve bytes: four bits in the first eight, two in the last four; 32 is taken off."""
    lower = one(scales, rows, k // 256 * 12, step * 12 + number % 8).to(tl.int32) >> (number // 8 * 4)
    upper = one(scales, rows, k // 256 * 12, step * 12 + 8 + number % 4).to(tl.int32) >> (number // 4 * 2)
    return (((lower & 15) | ((upper & 3) << 4)) - 32).to(tl.float32)


@triton.jit
def q3_k(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[3], rows, k // 256, step).to(tl.float32)
    first = d * _scale_3(planes[2], rows, k, step, part * 2)
    second = d * _scale_3(planes[2], rows, k, step, part * 2 + 1)
    q = (piece(planes[1], rows, k // 4, step * 64 + part // 4 * 32, 32) >> (part % 4 * 2)) & 3
    third = (piece(planes[0], rows, k // 8, step * 32, 32) >> part) & 1
    return halves(first, second) * ((q | (third << 2)) - 4).to(tl.float32)


@triton.jit
def _scale_min(words, rows, k: tl.constexpr, step, part: tl.constexpr):
    """Scale and minimum of a part, six bits each, of three words; the last four have their upper bits in the first."""
    lower = one(words, rows, k // 256 * 3, step * 3)
    middle = one(words, rows, k // 256 * 3, step * 3 + 1)
    if part < 4:
        scale = (lower >> (8 * part)) & 63
        minimum = (middle >> (8 * part)) & 63
    else:
        last = one(words, rows, k // 256 * 3, step * 3 + 2) >> (8 * (part - 4))
        scale = (last & 15) | (((lower >> (8 * (part - 4) + 6)) & 3) << 4)
        minimum = ((last >> 4) & 15) | (((middle >> (8 * (part - 4) + 6)) & 3) << 4)
    return scale.to(tl.float32), minimum.to(tl.float32)


@triton.jit
def q4_k(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    scale, minimum = _scale_min(planes[2], rows, k, step, part)
    d = one(planes[0], rows, k // 256, step).to(tl.float32) * scale
    low = one(planes[1], rows, k // 256, step).to(tl.float32) * minimum
    q = (piece(planes[3], rows, k // 2, step * 128 + part // 2 * 32, 32) >> (part % 2 * 4)) & 15
    return d[:, None] * q.to(tl.float32) - low[:, None]


@triton.jit
def q5_k(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    scale, minimum = _scale_min(planes[2], rows, k, step, part)
    d = one(planes[0], rows, k // 256, step).to(tl.float32) * scale
    low = one(planes[1], rows, k // 256, step).to(tl.float32) * minimum
    q = (piece(planes[4], rows, k // 2, step * 128 + part // 2 * 32, 32) >> (part % 2 * 4)) & 15
    fifth = (piece(planes[3], rows, k // 8, step * 32, 32) >> part) & 1
    return d[:, None] * (q | (fifth << 4)).to(tl.float32) - low[:, None]


@triton.jit
def q6_k(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[3], rows, k // 256, step).to(tl.float32)
    first = d * one(planes[2], rows, k // 16, step * 16 + part * 2).to(tl.float32)
    second = d * one(planes[2], rows, k // 16, step * 16 + part * 2 + 1).to(tl.float32)
    q = piece(planes[0], rows, k // 2, step * 128 + part // 4 * 64 + part % 2 * 32, 32) >> (part % 4 // 2 * 4)
    upper = piece(planes[1], rows, k // 4, step * 64 + part // 4 * 32, 32) >> (part % 4 * 2)
    return halves(first, second) * (((q & 15) | ((upper & 3) << 4)) - 32).to(tl.float32)
