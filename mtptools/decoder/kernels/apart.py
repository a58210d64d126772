"""Slabs of Hugging Face and MLX matrices, whose codes and scales a file keeps apart."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mtptools.codecs.fp8 import E8M0_NAN
from mtptools.decoder.kernels.layouts import Slab, plane_of
from mtptools.errors import CodecError, CorruptError

__all__ = ["f8_slab", "fp4_slab", "mlx_slab"]

_GROUP: Final = 32  # columns of a step of all these kinds
_MLX: Final = {4: "MLX_4", 8: "MLX_8"}
_HINT: Final = "load it decoded"


def f8_slab(codes: NDArray[np.uint8], scales: NDArray[np.float32], group: int, device: torch.device) -> Slab:
    """F8_E4M3 codes [N, K], each times its scale.

    scales  [N, ceil(K / group)]: a row has its own, so that rows can be cut and moved. Of blocks of 128 x 128 that is
            each scale 128 times over, 3 % of the codes' bytes.

    Raises CodecError where K or group is not a multiple of 32 (one scale a row: group is K), CorruptError where shapes
    disagree.
    """
    n, k = codes.shape
    _check(scales, n, k, group)
    return Slab(
        "F8_BLOCK", (plane_of(codes, torch.uint8, device), plane_of(scales, torch.float32, device)), (n, k), group
    )


def fp4_slab(codes: NDArray[np.uint8], exponents: NDArray[np.uint8], device: torch.device) -> Slab:
    """E2M1 codes [N, K / 2], two a byte, the first low, and F8_E8M0 exponents [N, K / 32].

    Raises CodecError for an exponent of 255, which is NaN, or infinity to MLX; CorruptError where shapes disagree.
    """
    n, k = len(codes), codes.shape[1] * 2
    _check(exponents, n, k, _GROUP)
    if (exponents == E8M0_NAN).any():
        raise CodecError("a scale is not finite (byte 255)", hint="download the release again")
    planes = (plane_of(exponents, torch.uint8, device), plane_of(_by_halves(codes), torch.uint8, device))
    return Slab("FP4_E8M0", planes, (n, k))


def mlx_slab(
    words: NDArray[np.uint32],
    scales: NDArray[Any],
    biases: NDArray[Any],
    dtype: torch.dtype,
    bits: int,
    group: int,
    device: torch.device,
) -> Slab:
    """MLX's affine mode: words [N, K bits / 32], scales and biases [N, K / group], as their stored bytes say.

    dtype  of scales and biases (float32, bfloat16, float16): values are rounded to it twice

    Raises CodecError for bits other than 4 and 8, CorruptError where shapes disagree.
    """
    kind = _MLX.get(bits)
    if kind is None:
        raise CodecError(f"no kernel reads MLX's {bits} bits", hint=_HINT)
    n, k = len(words), words.shape[1] * 32 // bits
    codes = np.ascontiguousarray(words, "<u4").view(np.uint8)
    _check(scales, n, k, group)
    _check(biases, n, k, group)
    planes = (
        plane_of(scales, dtype, device),
        plane_of(biases, dtype, device),
        plane_of(_by_halves(codes) if bits == 4 else codes, torch.uint8, device),
    )
    return Slab(kind, planes, (n, k), group)


def _by_halves(pairs: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bytes of codes 2i (low) and 2i + 1, as ggml has them: of 32 values, byte j holds j (low) and j + 16."""
    source = pairs.reshape(len(pairs), -1, 2, _GROUP // 4)
    out = np.empty((len(pairs), source.shape[1], _GROUP // 2), np.uint8)
    first, second = source[:, :, 0], source[:, :, 1]
    out[..., 0::2] = (first & 0x0F) | (second << 4)
    out[..., 1::2] = (first >> 4) | (second & 0xF0)
    return out.reshape(pairs.shape)


def _check(scales: NDArray[Any], n: int, k: int, group: int) -> None:
    if k % _GROUP or (group % _GROUP and group < k):
        raise CodecError(f"no kernel reads rows of {k} values in groups of {group}", hint=_HINT)
    if scales.shape != (n, -(-k // group)):
        raise CorruptError(
            f"scales {list(scales.shape)} do not fit [{n}, {k}] in groups of {group}", hint="download the release again"
        )
