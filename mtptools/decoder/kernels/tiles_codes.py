# mypy: disable-error-code="no-untyped-def,untyped-decorator,import-untyped"
"""Codes that stand for values of a short list: FP4 and FP8 under scales, and ggml's 16 uneven steps.

The form of a tile: `tiles`. A list of 16 is a constant that is shifted, so that no memory is read for it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mtptools.decoder.kernels.numbers import e4m3, halves, narrow, nibbles, one, piece

__all__ = ["f8_block", "fp4_e8m0", "iq4_nl", "iq4_xs", "mlx_4", "mlx_8", "mxfp4", "nvfp4"]


@triton.jit
def _uneven(code):
    """ggml's kvalues_iq4nl: -127 -104 -83 -65 -49 -35 -22 -10, 1 13 25 38 53 69 89 113, a byte each."""
    word = tl.where(code < 8, -0x091522304052677F, 0x7159453526190D01)
    return (word >> ((code & 7) * 8).to(tl.int64)).to(tl.int8).to(tl.float32)


@triton.jit
def _doubled(code):
    """Twice the value of E2M1 codes, as integers: 0 1 2 3 4 6 8 12, then the same below zero."""
    size = (-0x379BCDF0 >> ((code & 7) * 4)) & 15
    return tl.where(code < 8, size, -size)


@triton.jit
def iq4_nl(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    d = one(planes[0], rows, k // 32, step).to(tl.float32)
    return d[:, None] * _uneven(nibbles(planes[1], rows, k // 2, step * 16))


@triton.jit
def iq4_xs(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """A part has a scale of six bits, less 32."""
    lower = one(planes[2], rows, k // 64, step * 4 + part // 2).to(tl.int32) >> (part % 2 * 4)
    upper = one(planes[1], rows, k // 256, step).to(tl.int32) >> (part * 2)
    scale = (((lower & 15) | ((upper & 3) << 4)) - 32).to(tl.float32)
    d = one(planes[0], rows, k // 256, step).to(tl.float32) * scale
    return d[:, None] * _uneven(nibbles(planes[3], rows, k // 2, step * 128 + part * 16))


@triton.jit
def mxfp4(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """GGUF's: half the scale times twice the value, which has no minus zero; exponents 0 and 1 are subnormal."""
    e = one(planes[0], rows, k // 32, step).to(tl.int32)
    half = tl.where(e < 2, 0x200000 << e, (e - 1) << 23).to(tl.float32, bitcast=True)
    q = nibbles(planes[1], rows, k // 2, step * 16)
    return half[:, None] * _doubled(q).to(tl.float32)


@triton.jit
def fp4_e8m0(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """Hugging Face's and MLX's: there is a minus zero."""
    e = one(planes[0], rows, k // 32, step).to(tl.int32)
    scale = tl.where(e == 0, 0x400000, e << 23).to(tl.float32, bitcast=True)
    q = nibbles(planes[1], rows, k // 2, step * 16)
    value = _doubled(q & 7).to(tl.float32) * tl.where(q < 8, 0.5, -0.5)
    return value * scale[:, None]


@triton.jit
def _half_e4m3(code):
    return tl.where(code == 127, 0.0, e4m3(code) * 0.5)


@triton.jit
def nvfp4(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """GGUF's: four groups of 16 values in a block, two in a part; half an unsigned E4M3 each, whose NaN is 0."""
    first = _half_e4m3(one(planes[0], rows, k // 16, step * 4 + part * 2).to(tl.int32))
    second = _half_e4m3(one(planes[0], rows, k // 16, step * 4 + part * 2 + 1).to(tl.int32))
    column = tl.arange(0, 32)
    at = planes[1] + (rows * (k // 2))[:, None] + (step * 32 + part * 16 + column // 16 * 8 + column % 8)[None, :]
    q = (tl.load(at).to(tl.int32) >> (column % 16 // 8 * 4)[None, :]) & 15
    return halves(first, second) * _doubled(q).to(tl.float32)


@triton.jit
def f8_block(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    """E4M3 codes, and a float32 scale for `group` columns of a row."""
    scale = one(planes[1], rows, (k + group - 1) // group, step * 32 // group)
    code = piece(planes[0], rows, k, step * 32, 32)
    value = tl.where((code & 127) == 127, float("nan"), e4m3(code) * tl.where(code < 128, 1.0, -1.0))
    return value * scale[:, None]


@triton.jit
def _affine(planes, q, rows, k: tl.constexpr, group: tl.constexpr, step):
    """MLX's affine mode: the product and the sum are each rounded to the type that the scales have."""
    groups: tl.constexpr = (k + group - 1) // group
    scale = one(planes[0], rows, groups, step * 32 // group).to(tl.float32)
    bias = one(planes[1], rows, groups, step * 32 // group).to(tl.float32)
    dtype: tl.constexpr = planes[0].dtype.element_ty
    product = narrow(q.to(tl.float32) * scale[:, None], dtype).to(tl.float32)
    return narrow(product + bias[:, None], dtype).to(tl.float32)


@triton.jit
def mlx_4(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    return _affine(planes, nibbles(planes[2], rows, k // 2, step * 16), rows, k, group, step)


@triton.jit
def mlx_8(planes, rows, k: tl.constexpr, group: tl.constexpr, step, part: tl.constexpr):
    return _affine(planes, piece(planes[2], rows, k, step * 32, 32), rows, k, group, step)
