"""MXFP4 and NVFP4 as ggml's C code encodes them, byte for byte: E2M1 codes, and a scale of 8 bits for each group.

    MXFP4   groups of 32 under a power of two: the largest magnitude's, less two, so that above 6 units are cut to 6
    NVFP4   groups of 16, four to a block, under an F8_E4M3 that takes the largest magnitude to 6

ggml counts in half units. gguf-py has the same MXFP4, and is ten times slower. Neither type takes importance, and NVFP4
leaves the matrix's own scale, a tensor beside it, to others. Sources: ggml's `quantize_row_mxfp4_ref`,
`quantize_row_nvfp4_ref` and `ggml_fp32_to_ue4m3`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from mtptools.codecs import fp4
from mtptools.codecs.ksearch import Codes, Floats

__all__ = ["TYPES", "encode"]

_TILE: Final = 4096
# Half way between two magnitudes, in half units; what is in the middle gets the lower one.
_BOUNDS: Final = np.array([0.5, 1.5, 2.5, 3.5, 5, 7, 10], np.float32)
_HALVES: Final = 2 * fp4.VALUES
_FAR: Final = np.float32(2.0**20)
_BIAS: Final = 127


def _mx_scales(largest: Floats) -> tuple[Codes, Floats]:
    """Stored exponents and half units, [n], of groups with these largest magnitudes; C's byte wraps around below 0."""
    # float64, then rounded: float32's own logarithm is not the same on every machine.
    exponent = np.floor(np.log2(largest.astype(np.float64)).astype(np.float32)) - np.float32(2) + np.float32(_BIAS)
    exponent[largest == 0] = 0
    stored = exponent.astype(np.int32).astype(np.uint8)
    return stored, np.ldexp(np.float32(1), stored.astype(np.int32) - (_BIAS + 1))


def _nv_scales(largest: Floats) -> tuple[Codes, Floats]:
    """As `_mx_scales`: F8_E4M3, halves rounded up, and 448 for all from 248 on."""
    scale = largest / np.float32(6)
    rounded = (scale.view(np.int32) + 0x80000 >> 20) - (120 << 3)
    subnormal = np.minimum(scale * np.float32(512) + np.float32(0.5), np.float32(7)).astype(np.int32)
    stored = np.where(scale < np.float32(2.0**-6), subnormal, np.where(rounded >= 0x78, 0x7E, rounded))
    mantissa, exponent = stored & 7, stored >> 3
    value = np.ldexp((mantissa + 8 * (exponent > 0)).astype(np.float32), np.maximum(exponent, 1) - 10)
    # With a scale of 0 every code is as near: the first one is taken.
    return stored.astype(np.uint8), np.where(stored > 0, value / np.float32(2), np.float32(np.inf))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Blocks of `groups` scales, then their codes, two a byte: value j of a group low, value j + group / 2 high."""

    group: int
    groups: int
    scales: Callable[[Floats], tuple[Codes, Floats]]

    @property
    def block_bytes(self) -> int:
        return self.groups * (1 + self.group // 2)


_KINDS: Final = {"MXFP4": _Kind(32, 1, _mx_scales), "NVFP4": _Kind(16, 4, _nv_scales)}
TYPES: Final = tuple(_KINDS)


def encode(values: Floats, codec: str, importance: Floats | None = None) -> Codes:
    """float32 [rows, cols], finite, cols whole blocks, as blocks of `codec`, uint8 [rows, row_bytes].

    importance  ignored, as C does
    """
    kind = _KINDS[codec]
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, kind.group)
    out = np.empty((len(values), values.shape[1] // (kind.group * kind.groups) * kind.block_bytes), np.uint8)
    blocks = out.reshape(-1, kind.block_bytes)
    with np.errstate(all="ignore"):  # C's overflow is part of the result
        for start in range(0, len(groups), _TILE):
            x = np.ascontiguousarray(groups[start : start + _TILE].T)
            size = np.abs(x)
            stored, half_unit = kind.scales(size.max(axis=0))
            codes = _codes(x, size, half_unit)
            part = blocks[start // kind.groups : (start + _TILE) // kind.groups]
            part[:, : kind.groups] = stored.reshape(len(part), -1)
            low, high = np.split(codes, 2)
            part[:, kind.groups :] = (low | high << np.uint8(4)).T.reshape(len(part), -1)
    return out


def _codes(x: Floats, size: Floats, half_unit: Floats) -> Codes:
    """The nearest codes, [group, n]: never minus zero."""
    codes = np.zeros(x.shape, np.uint8)
    above = np.empty(x.shape, np.bool_)
    for bound in _BOUNDS:
        np.greater(size, half_unit * bound, out=above)
        codes += above.view(np.uint8)
    codes |= ((x < 0) & (codes > 0)).view(np.uint8) << np.uint8(3)
    # Where values are out of proportion (448 is the largest scale), or codes stand for infinity, float32 decides.
    odd = (size.max(axis=0) > half_unit * _FAR) | (np.isinf(half_unit * _HALVES[7]) & np.isfinite(half_unit))
    if odd.any():
        values = _HALVES[:, None, None] * half_unit[odd]
        codes[:, odd] = np.abs(values - x[:, odd]).argmin(axis=0)
    return codes
