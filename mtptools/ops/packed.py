"""Quantized values that go from one dialect to another without being decoded: DeepSeek-V4's FP4 experts.

HF    codes I8 [r, c / 2] of two E2M1, and a scale F8_E8M0 for every 32 of a row [r, c / 32]
GGUF  MXFP4 blocks of 32 values: the scale's byte, then the codes in another order
"""

from __future__ import annotations

from typing import Final

import numpy as np

from mtptools.codecs.repack import REPACKS
from mtptools.conventions import LAYOUTS
from mtptools.head import Found
from mtptools.quantized import scheme_of
from mtptools.tensors import Packed, Tensor
from mtptools.views import repacked, stack

__all__ = ["FP4", "as_fp4", "as_mxfp4"]

FP4: Final = "fp4-e8m0"
GROUP: Final = 32


def as_mxfp4(found: Found) -> Tensor | None:
    """A role whose every weight is packed FP4 as one MXFP4 tensor, canonical; None when any of them is not."""
    pairs = []
    for one in found.stored:
        scheme = scheme_of(one.tensor, one.scales)
        if scheme is None or scheme.name != FP4 or set(one.scales) != {scheme.scale}:
            return None
        pairs.append((one.tensor, one.scales[scheme.scale]))
    if not pairs or not LAYOUTS[found.source.layout].per_expert:
        return None
    codes, scales = (stack(part, found.role.name) for part in zip(*pairs, strict=True))
    half, groups = codes.shape[-1], scales.shape[-1]

    def packed(start: int, stop: int) -> bytes:
        rows = np.frombuffer(codes.read(start * half, (stop - start) * half), np.uint8).reshape(-1, half)
        scale = np.frombuffer(scales.read(start * groups, (stop - start) * groups), np.uint8).reshape(-1, groups)
        return bytes(REPACKS[FP4, "MXFP4"](rows, scale)[0].tobytes())

    return repacked(found.role.name, (*codes.shape[:-1], 2 * half), "MXFP4", packed)


def as_fp4(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """An MXFP4 tensor [r, c] as codes I8 [r, c / 2] and scales F8_E8M0 [r, c / 32]."""
    size, columns = tensor.row_bytes, tensor.shape[-1]

    def part(which: int) -> Packed:
        def packed(start: int, stop: int) -> bytes:
            blocks = np.frombuffer(tensor.read(start * size, (stop - start) * size), np.uint8).reshape(-1, size)
            return bytes(REPACKS["MXFP4", FP4](blocks)[which].tobytes())

        return packed

    lead = tensor.shape[:-1]
    codes = repacked(tensor.name, (*lead, columns // 2), "I8", part(0))
    return codes, repacked(tensor.name, (*lead, columns // GROUP), "F8_E8M0", part(1))
