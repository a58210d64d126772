"""FP4: values, and repacks that move nibbles, against gguf-py and (where it is installed) MLX."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from mtptools.codecs import fp4, fp8, mlx
from mtptools.codecs.repack import REPACKS
from mtptools.errors import CodecError

RNG = np.random.default_rng(3)
# E8M0 bytes at the edges. At 254 large codes overflow to infinity everywhere.
EDGES = (0, 1, 2, 127, 253, 254)


def weight(rows: int = 6, columns: int = 256, scale: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Random packed codes [rows, columns / 2] and exponents [rows, columns / 32]."""
    packed = RNG.integers(0, 256, (rows, columns // 2), np.uint8)
    exponents = RNG.integers(100, 140, (rows, columns // 32), np.uint8)
    return packed, exponents if scale is None else np.full_like(exponents, scale)


def values(packed: np.ndarray, scale: np.ndarray) -> np.ndarray:
    factor = fp8.decode(scale, "F8_E8M0").reshape(*scale.shape, 1)
    with np.errstate(over="ignore"):
        return (fp4.decode(packed).reshape(*scale.shape, 32) * factor).reshape(len(packed), -1)


def test_the_sixteen_values_and_the_nibble_order() -> None:
    assert fp4.decode(bytes([0x10, 0x32, 0x54, 0x76])).tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    low = fp4.decode(bytes([0x98, 0xBA, 0xDC, 0xFE]))
    assert low.tolist() == [0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert np.signbit(low).all()


def test_values_are_transformers() -> None:
    """transformers unpacks DeepSeek-V4's experts when it loads them: an implementation of its own."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.integrations.finegrained_fp8")
    packed, scale = weight()
    theirs = module.Fp8Dequantize(None)._dequantize_one(
        torch.from_numpy(packed.view(np.int8)), torch.from_numpy(scale).view(torch.float8_e8m0fnu), torch.float32
    )
    assert values(packed, scale).tobytes() == theirs.numpy().tobytes()


@pytest.mark.parametrize("scale", [None, *EDGES])
def test_mxfp4_blocks_have_the_same_values(scale: int | None) -> None:
    packed, exponents = weight(scale=scale)
    (blocks,) = REPACKS["fp4-e8m0", "MXFP4"](packed, exponents)
    assert blocks.shape == (6, 8 * 17)
    assert blocks[0, 0] == exponents[0, 0]
    with np.errstate(over="ignore"):
        theirs = dequantize(blocks, gguf.GGMLQuantizationType.MXFP4).astype(np.float32)
    # gguf-py has one zero; ours keeps the sign of code 8.
    assert np.array_equal(values(packed, exponents), theirs)


def test_mxfp4_round_trip_is_byte_exact() -> None:
    packed, exponents = weight(rows=300)
    (blocks,) = REPACKS["fp4-e8m0", "MXFP4"](packed, exponents)
    back, scale = REPACKS["MXFP4", "fp4-e8m0"](blocks)
    assert (back.tobytes(), scale.tobytes()) == (packed.tobytes(), exponents.tobytes())
    stacked = fp4.to_mxfp4(packed.reshape(3, 100, -1), exponents.reshape(3, 100, -1))
    assert stacked.shape == (3, 100, 8 * 17)
    assert stacked.tobytes() == blocks.tobytes()


def test_gguf_pys_blocks_go_to_packed_and_back() -> None:
    data = RNG.standard_normal((4, 128)).astype(np.float32)
    blocks = gguf.quants.quantize(data, gguf.GGMLQuantizationType.MXFP4)
    packed, scale = fp4.from_mxfp4(blocks)
    assert np.array_equal(values(packed, scale), dequantize(blocks, gguf.GGMLQuantizationType.MXFP4))
    assert fp4.to_mxfp4(packed, scale).tobytes() == blocks.tobytes()


def test_nan_scales_mean_three_things_and_are_refused() -> None:
    """255: NaN by the standard; ggml halves its table and handles no NaN, so that code 2 reads as 2 ** 128, code 1 as
    2 ** 127; MLX reads infinity. No repack has one meaning for it."""
    packed, exponents = weight(rows=2)
    exponents[1, 3] = 255
    assert np.isnan(values(packed, exponents)[1, 96:128]).all()
    half = np.concatenate([[255], np.full(16, 0x11)]).astype(np.uint8)[None]
    assert dequantize(half, gguf.GGMLQuantizationType.MXFP4).tolist() == [[2.0**127] * 32]
    for target in ("MXFP4", "mlx-mxfp4"):
        with pytest.raises(CodecError, match="NaN"):
            REPACKS["fp4-e8m0", target](packed, exponents)
    with pytest.raises(CodecError, match="NaN"):
        REPACKS["MXFP4", "fp4-e8m0"](half)


def test_shapes_that_do_not_fit_are_refused() -> None:
    packed, exponents = weight()
    with pytest.raises(CodecError, match="not groups of 32"):
        fp4.to_mxfp4(packed, exponents[:, :-1])
    with pytest.raises(CodecError, match="not MXFP4 blocks"):
        fp4.from_mxfp4(np.zeros((2, 33), np.uint8))


def test_mlx_mxfp4_has_the_same_values_and_comes_back() -> None:
    packed, exponents = weight()
    words, scales = REPACKS["fp4-e8m0", "mlx-mxfp4"](packed, exponents)
    assert (words.dtype, words.shape) == (np.uint32, (6, 32))
    theirs = mlx.dequantize(words, scales, bits=4, group=32, mode="mxfp4")
    assert theirs.tobytes() == values(packed, exponents).tobytes()
    assert [a.tobytes() for a in REPACKS["mlx-mxfp4", "fp4-e8m0"](words, scales)] == [
        packed.tobytes(),
        exponents.tobytes(),
    ]


def blocks_of_fp8(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """F8_E4M3 codes without NaN, exponents of 128x128 blocks, and the values."""
    codes = RNG.integers(0, 127, (rows, columns), np.uint8) | (RNG.integers(0, 2, (rows, columns), np.uint8) << 7)
    scale = RNG.integers(100, 140, (-(-rows // 128), -(-columns // 128)), np.uint8)
    factor = np.kron(fp8.decode(scale, "F8_E8M0").reshape(scale.shape), np.ones((128, 128), np.float32))
    return codes, scale, fp8.decode(codes, "F8_E4M3").reshape(rows, columns) * factor[:rows, :columns]


@pytest.mark.parametrize(("rows", "columns"), [(256, 384), (200, 160)])
def test_mlx_mxfp8_has_the_same_values_and_comes_back(rows: int, columns: int) -> None:
    codes, scale, expected = blocks_of_fp8(rows, columns)
    words, scales = REPACKS["fp8-e8m0", "mlx-mxfp8"](codes, scale)
    theirs = mlx.dequantize(words, scales, bits=8, group=32, mode="mxfp8")
    assert theirs.tobytes() == expected.tobytes()
    assert [a.tobytes() for a in REPACKS["mlx-mxfp8", "fp8-e8m0"](words, scales)] == [codes.tobytes(), scale.tobytes()]


def test_mlx_itself_reads_the_repacks() -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX itself is compared with where it is installed")
    for scale in (None, *EDGES):
        packed, exponents = weight(scale=scale)
        words, scales = REPACKS["fp4-e8m0", "mlx-mxfp4"](packed, exponents)
        out = mx.dequantize(mx.array(words), mx.array(scales), group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
        assert np.array(out).tobytes() == values(packed, exponents).tobytes(), scale
    codes, block, expected = blocks_of_fp8(256, 384)
    words, scales = REPACKS["fp8-e8m0", "mlx-mxfp8"](codes, block)
    out = mx.dequantize(mx.array(words), mx.array(scales), group_size=32, bits=8, mode="mxfp8", dtype=mx.float32)
    assert np.array(out).tobytes() == expected.tobytes()
