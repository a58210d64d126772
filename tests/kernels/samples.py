"""A matrix of every kind: random bytes with the odd cases put in, its slab, and its values by another implementation.

Values of GGUF's types are gguf-py's, through `mtptools.codecs`; of the others `mtptools.codecs`' own, which are
compared with MLX and torch elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mtptools.codecs import CODECS, decode_bytes, fp4, fp8, mlx
from mtptools.codecs.floats import decode, encode
from mtptools.decoder.kernels.apart import f8_slab, fp4_slab, mlx_slab
from mtptools.decoder.kernels.layouts import KINDS, Slab, slab_of

CPU: Final = torch.device("cpu")
Sample = tuple[Slab, NDArray[np.float32]]

# float16: both zeros, the smallest and largest subnormal, the largest value
HALVES: Final = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x3C00, 0xBC01, 0x0400], "<u2").view("<f2")


def gguf(codec: str, n: int, k: int, rng: np.random.Generator, *, tame: bool) -> Sample:
    """tame: float16 fields are small numbers; else also subnormal, zero of both signs, and largest."""
    kind, size = KINDS[codec], CODECS[codec].block_bytes
    data = rng.integers(0, 256, (n, CODECS[codec].row_bytes(k)), np.uint8)
    blocks = data.reshape(-1, size)
    at = 0
    for n_bytes, dtype in kind.fields:
        if dtype == torch.float16:
            some = rng.uniform(-0.02, 0.02, len(blocks)).astype("<f2")
            if not tame:
                some[: len(HALVES)] = HALVES[: len(some)]
            blocks[:, at : at + 2] = some[:, None].view(np.uint8)
        at += n_bytes
    if codec == "IQ1_M":  # its float16 is the upper four bits of each of four words
        words = blocks[:, 48:].view("<u2")
        d = rng.uniform(-0.02, 0.02, len(blocks)).astype("<f2").view("<u2")
        words[:] = (words & 0x0FFF) | ((d[:, None] >> np.array([0, 4, 8, 12], "<u2")) & 15) << 12
    if codec == "MXFP4":
        blocks[:, 0] = rng.integers(110, 125, len(blocks)) if tame else np.resize([0, 1, 2, 127, 254], len(blocks))
    if codec == "NVFP4" and tame:
        blocks[:, :4] &= 0x3F
    if codec in ("F32", "BF16"):
        values = rng.standard_normal((n, k), np.float32)
        if not tame:
            values.flat[:6] = np.array([-0.0, 1e-45, -1e-40, 3.4e38, 65504, 1e-8], np.float32)[: values.size]
        data = np.frombuffer(encode(values, codec), np.uint8).reshape(n, -1)
    return slab_of(codec, data, k, CPU), decode_bytes(data.tobytes(), codec, k)


def f8(n: int, k: int, rng: np.random.Generator, *, tame: bool) -> Sample:
    codes = rng.integers(0, 256, (n, k), np.uint8)
    codes[codes & 0x7F == 0x7F] = 0x80  # NaN: in a test of its own
    scales = rng.uniform(1e-4, 1e-3, (-(-n // 128), -(-k // 128))).astype(np.float32)
    if not tame:
        scales.flat[0] = 1e-42
    rows = np.repeat(scales, 128, axis=0)[:n]
    want = fp8.decode(codes, "F8_E4M3").reshape(n, k) * np.repeat(rows, 128, axis=1)[:, :k]
    return f8_slab(codes, rows, 128, CPU), want


def fp4_e8m0(n: int, k: int, rng: np.random.Generator, *, tame: bool) -> Sample:
    codes = rng.integers(0, 256, (n, k // 2), np.uint8)
    exponents = rng.integers(110, 125, (n, k // 32)).astype(np.uint8)
    if not tame:
        exponents.flat[:4] = np.array([0, 1, 2, 250], np.uint8)[: exponents.size]
    scale = fp8.decode(exponents, "F8_E8M0").reshape(n, -1)
    return fp4_slab(codes, exponents, CPU), fp4.decode(codes).reshape(n, k) * np.repeat(scale, 32, axis=1)


_MLX_TYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def mlx_affine(bits: int, group: int, dtype: str, n: int, k: int, rng: np.random.Generator) -> Sample:
    words = rng.integers(0, 1 << 32, (n, k * bits // 32), np.uint32)
    shape = (n, k // group)
    stored = [encode(rng.normal(0, 0.02, shape).astype(np.float32), dtype) for _ in range(2)]
    scales, biases = (decode(data, dtype).reshape(shape) for data in stored)
    raw = [np.frombuffer(data, np.uint8).reshape(n, -1) for data in stored]
    size = len(stored[0]) // (n * shape[1])
    parts = [one.view(f"<u{size}") for one in raw]
    slab = mlx_slab(words, *parts, _MLX_TYPES[dtype], bits, group, CPU)
    return slab, mlx.dequantize(words, scales, biases, bits=bits, group=group, dtype=dtype)


_APART: Final[dict[str, Callable[..., Sample]]] = {
    "F8_BLOCK": f8,
    "FP4_E8M0": fp4_e8m0,
    "MLX_4": lambda n, k, rng, *, tame: mlx_affine(4, 64 if k % 64 == 0 else 32, "BF16", n, k, rng),
    "MLX_8": lambda n, k, rng, *, tame: mlx_affine(8, 64 if k % 64 == 0 else 32, "F16", n, k, rng),
}


def sample(kind: str, n: int, k: int, *, tame: bool = True, seed: int = 0) -> Sample:
    """A slab [n, k] of a kind, and its values in float32. tame: ordinary magnitudes, for products."""
    rng = np.random.default_rng([seed, n, k])
    with np.errstate(all="ignore"):
        return _APART[kind](n, k, rng, tame=tame) if kind in _APART else gguf(kind, n, k, rng, tame=tame)


def block_of(kind: str) -> int:
    """Columns that a row of this kind is a multiple of."""
    return CODECS[kind].block_values if KINDS[kind].fields else KINDS[kind].step
