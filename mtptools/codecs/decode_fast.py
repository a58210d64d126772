"""ggml's common block types decoded by compiled code: gguf-py's bits, ten to thirty times as fast.

A function that decodes a type takes its blocks, uint8 [n, block bytes], what each stored scale means, and the values
that it fills in one pass, float32 [n, block values]. What the compiler unrolls it makes no vectors of, at a quarter of
the speed: so the length of the shortest inner loops is one that it does not know (`n`), and others choose between two
scales where two loops would do. Products are exact (11 bits of F16, at most 12 of integers) and a sum is rounded once.
Source of the layouts: ggml-common.h and `dequantize_row_*` of ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.codecs import fp4, iq4
from mtptools.codecs.compiled import compiled

__all__ = ["KINDS", "Kind", "decode"]

_F: Final = np.float32
_I: Final = np.int32
_U: Final = np.uint32

# What an F16 means by its bits: the conversion is numpy's, subnormal numbers, infinities and NaN included.
_HALVES: Final = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
# What an E8M0 means to ggml: half of its power of two, as the grid of codes is twice E2M1's. Two are subnormal.
_EXPONENTS: Final = np.ldexp(np.float32(1), np.arange(256) - 128)
_FP4: Final = fp4.VALUES * np.float32(2) + np.float32(0)  # code 8 is plain zero
_IQ4: Final = iq4.GRID


@compiled
def _half(block: Any, at: int, halves: Any) -> Any:
    return halves[_U(block[at]) | _U(block[at + 1]) << _U(8)]


@compiled
def _word(block: Any, at: int) -> Any:
    return _U(block[at]) | _U(block[at + 1]) << _U(8) | _U(block[at + 2]) << _U(16) | _U(block[at + 3]) << _U(24)


@compiled
def _low(byte: Any) -> Any:
    return _I(byte & np.uint8(15))


@compiled
def _high(byte: Any) -> Any:
    return _I(byte >> np.uint8(4))


@compiled
def _bit(word: Any, j: int) -> Any:
    """Bit j, as the fifth bit of a code."""
    return _I(word >> _U(j) & _U(1)) << _I(4)


@compiled
def _q8_0(blocks: Any, halves: Any, out: Any) -> None:
    n = out.shape[1]
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d = _half(block, 0, halves)
        for j in range(n):
            to[j] = _F(np.int8(block[2 + j])) * d


@compiled
def _q4_0(blocks: Any, halves: Any, out: Any) -> None:
    n = out.shape[1] // 2
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d = _half(block, 0, halves)
        for j in range(n):
            byte = block[2 + j]
            to[j] = d * _F(_low(byte) - _I(8))
            to[16 + j] = d * _F(_high(byte) - _I(8))


@compiled
def _q4_1(blocks: Any, halves: Any, out: Any) -> None:
    n = out.shape[1] // 2
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, least = _half(block, 0, halves), _half(block, 2, halves)
        for j in range(n):
            byte = block[4 + j]
            to[j] = d * _F(_low(byte)) + least
            to[16 + j] = d * _F(_high(byte)) + least


@compiled
def _q5_0(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, fifth = _half(block, 0, halves), _word(block, 2)
        for j in range(16):
            byte = block[6 + j]
            to[j] = d * _F((_low(byte) | _bit(fifth, j)) - _I(16))
            to[16 + j] = d * _F((_high(byte) | _bit(fifth, 16 + j)) - _I(16))


@compiled
def _q5_1(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, least, fifth = _half(block, 0, halves), _half(block, 2, halves), _word(block, 4)
        for j in range(16):
            byte = block[8 + j]
            to[j] = d * _F(_low(byte) | _bit(fifth, j)) + least
            to[16 + j] = d * _F(_high(byte) | _bit(fifth, 16 + j)) + least


@compiled
def _iq4_nl(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d = _half(block, 0, halves)
        for j in range(16):
            byte = block[2 + j]
            to[j] = d * _IQ4[_low(byte)]
            to[16 + j] = d * _IQ4[_high(byte)]


@compiled
def _mxfp4(blocks: Any, exponents: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d = exponents[block[0]]
        for j in range(16):
            byte = block[1 + j]
            to[j] = d * _FP4[_low(byte)]
            to[16 + j] = d * _FP4[_high(byte)]


@compiled
def _iq4_xs(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, upper = _half(block, 0, halves), _U(block[2]) | _U(block[3]) << _U(8)
        for g in range(8):
            lower = _I(block[4 + g // 2] >> np.uint8(4 * (g % 2)) & np.uint8(15))
            a = d * _F((lower | _I(upper >> _U(2 * g) & _U(3)) << _I(4)) - _I(32))
            for j in range(16):
                byte = block[8 + 16 * g + j]
                to[32 * g + j] = a * _IQ4[_low(byte)]
                to[32 * g + 16 + j] = a * _IQ4[_high(byte)]


@compiled
def _fields(block: Any, g: int) -> Any:
    """Scale and minimum of group g of 8: 6 bits each, in the 12 bytes from byte 4 on."""
    if g < 4:
        return block[4 + g] & 63, block[8 + g] & 63
    return block[8 + g] & 15 | block[g] >> 2 & 48, block[8 + g] >> 4 | block[4 + g] >> 2 & 48


@compiled
def _q4_k(blocks: Any, halves: Any, out: Any) -> None:
    n = out.shape[1] // 8
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, least = _half(block, 0, halves), _half(block, 2, halves)
        for p in range(4):
            (s0, m0), (s1, m1) = _fields(block, 2 * p), _fields(block, 2 * p + 1)
            a0, b0, a1, b1 = d * _F(s0), least * _F(m0), d * _F(s1), least * _F(m1)
            for j in range(n):
                byte = block[16 + 32 * p + j]
                to[64 * p + j] = a0 * _F(_low(byte)) - b0
                to[64 * p + 32 + j] = a1 * _F(_high(byte)) - b1


@compiled
def _q5_k(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, least = _half(block, 0, halves), _half(block, 2, halves)
        for p in range(4):
            (s0, m0), (s1, m1) = _fields(block, 2 * p), _fields(block, 2 * p + 1)
            a0, b0, a1, b1 = d * _F(s0), least * _F(m0), d * _F(s1), least * _F(m1)
            for j in range(32):
                byte, fifth = block[48 + 32 * p + j], _U(block[16 + j])
                to[64 * p + j] = a0 * _F(_low(byte) | _bit(fifth, 2 * p)) - b0
                to[64 * p + 32 + j] = a1 * _F(_high(byte) | _bit(fifth, 2 * p + 1)) - b1


@compiled
def _q6_k(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d = _half(block, 208, halves)
        for g in range(8):
            a, b = d * _F(np.int8(block[192 + 2 * g])), d * _F(np.int8(block[193 + 2 * g]))
            low, upper = 64 * (g // 4) + 32 * (g % 2), 128 + 32 * (g // 4)
            nibble, pair = np.uint8(4 * (g // 2 % 2)), np.uint8(2 * (g % 4))
            for j in range(32):
                four = block[low + j] >> nibble & np.uint8(15)
                two = block[upper + j] >> pair & np.uint8(3)
                to[32 * g + j] = (a if j < 16 else b) * _F((_I(four) | _I(two) << _I(4)) - _I(32))


@compiled
def _q2_k(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d, least = _half(block, 80, halves), _half(block, 82, halves)
        for g in range(8):
            first, second = block[2 * g], block[2 * g + 1]
            a0, b0, a1, b1 = (
                d * _F(_low(first)),
                least * _F(_high(first)),
                d * _F(_low(second)),
                least * _F(_high(second)),
            )
            at, pair = 16 + 32 * (g // 4), np.uint8(2 * (g % 4))
            for j in range(32):
                code = _F(block[at + j] >> pair & np.uint8(3))
                to[32 * g + j] = (a0 if j < 16 else a1) * code - (b0 if j < 16 else b1)


@compiled
def _scale(block: Any, g: int) -> Any:
    """Q3_K's scale of group g of 16, -32 to 31: 6 bits, in the 12 bytes from byte 96 on."""
    lower = block[96 + g % 8] >> np.uint8(4 * (g // 8)) & np.uint8(15)
    upper = block[104 + g % 4] >> np.uint8(2 * (g // 4)) & np.uint8(3)
    return (_I(lower) | _I(upper) << _I(4)) - _I(32)


@compiled
def _q3_k(blocks: Any, halves: Any, out: Any) -> None:
    for i in range(len(blocks)):
        block, to = blocks[i], out[i]
        d = _half(block, 108, halves)
        for g in range(8):
            a, b = d * _F(_scale(block, 2 * g)), d * _F(_scale(block, 2 * g + 1))
            at, pair, bit = 32 + 32 * (g // 4), np.uint8(2 * (g % 4)), np.uint8(g)
            for j in range(32):
                two = _I(block[at + j] >> pair & np.uint8(3))
                third = _I(block[j] >> bit & np.uint8(1)) << _I(2)  # one that is not set takes 4 away
                to[32 * g + j] = (a if j < 16 else b) * _F((two | third) - _I(4))


@dataclass(frozen=True, slots=True)
class Kind:
    """run  fills values from blocks; scales  what a stored scale means, by its bits"""

    run: Callable[[Any, Any, Any], None]
    block_values: int
    block_bytes: int
    scales: NDArray[np.float32]


KINDS: Final = {
    "Q8_0": Kind(_q8_0, 32, 34, _HALVES),
    "Q4_0": Kind(_q4_0, 32, 18, _HALVES),
    "Q4_1": Kind(_q4_1, 32, 20, _HALVES),
    "Q5_0": Kind(_q5_0, 32, 22, _HALVES),
    "Q5_1": Kind(_q5_1, 32, 24, _HALVES),
    "IQ4_NL": Kind(_iq4_nl, 32, 18, _HALVES),
    "MXFP4": Kind(_mxfp4, 32, 17, _EXPONENTS),
    "IQ4_XS": Kind(_iq4_xs, 256, 136, _HALVES),
    "Q4_K": Kind(_q4_k, 256, 144, _HALVES),
    "Q5_K": Kind(_q5_k, 256, 176, _HALVES),
    "Q6_K": Kind(_q6_k, 256, 210, _HALVES),
    "Q2_K": Kind(_q2_k, 256, 84, _HALVES),
    "Q3_K": Kind(_q3_k, 256, 110, _HALVES),
}


def decode(data: NDArray[np.uint8], codec: str) -> NDArray[np.float32]:
    """Whole blocks of a type in KINDS, uint8 as flat float32. Raises ValueError for a part of a block."""
    kind = KINDS[codec]
    blocks = data.reshape(-1, kind.block_bytes)
    blocks.flags.writeable = False  # one compiled version, not a second one for what may be written
    out = np.empty((len(blocks), kind.block_values), np.float32)
    kind.run(blocks, kind.scales, out)
    return out.reshape(-1)
