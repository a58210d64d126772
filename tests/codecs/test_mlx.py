"""MLX's quantized matrices, against what MLX itself made: fixtures/mlx/make_codecs.py; no MLX is needed here."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from mtptools.codecs import floats
from mtptools.codecs.mlx import MODES, dequantize, pack, quantize, quantize_fp, unpack
from mtptools.errors import CodecError
from tests.conftest import FIXTURES

DTYPES = ("F32", "F16", "BF16")
FLOATING = [name for name, mode in MODES.items() if mode.largest is not None]
CASES = [(name, bits, group) for name, mode in MODES.items() for bits in mode.bits for group in mode.groups]


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(FIXTURES / "mlx" / "codecs.npz") as arrays:
        return dict(arrays)


def of(dtype: str, mode: str, bits: int, group: int, what: str) -> np.ndarray:
    """One array of the golden file, floats of any type as float32."""
    array = golden()[f"{dtype}/{mode}-{bits}-{group}/{what}"]
    if what == "packed" or array.dtype == np.uint8:
        return array
    return floats.decode(array.tobytes(), dtype).reshape(array.shape)


def bits_of(values: np.ndarray) -> list[list[int]]:
    """Bits of float32 values: -0 is not 0."""
    assert values.dtype == np.float32
    return np.ascontiguousarray(values).view(np.uint32).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("mode", "bits", "group"), CASES)
def test_dequantize_is_mlxs(dtype: str, mode: str, bits: int, group: int) -> None:
    biases = of(dtype, mode, bits, group, "biases") if mode == "affine" else None
    made = dequantize(
        of(dtype, mode, bits, group, "packed"),
        of(dtype, mode, bits, group, "scales"),
        biases,
        bits=bits,
        group=group,
        mode=mode,
        dtype=dtype,
    )
    assert bits_of(made) == bits_of(of(dtype, mode, bits, group, "values"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("mode", "bits", "group"), [case for case in CASES if case[0] == "affine" and case[1] > 1])
def test_quantize_is_mlxs(dtype: str, mode: str, bits: int, group: int) -> None:
    packed, scales, biases = quantize(golden()["values"], dtype, bits, group)
    assert packed.tolist() == of(dtype, mode, bits, group, "packed").tolist()
    assert bits_of(scales) == bits_of(of(dtype, mode, bits, group, "scales"))
    assert bits_of(biases) == bits_of(of(dtype, mode, bits, group, "biases"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", FLOATING)
def test_quantize_fp_is_mlxs(dtype: str, mode: str) -> None:
    bits, group = MODES[mode].bits[0], MODES[mode].groups[0]
    packed, scales = quantize_fp(golden()["values"], dtype, mode)
    assert scales.tolist() == of(dtype, mode, bits, group, "scales").tolist()
    assert packed.tolist() == of(dtype, mode, bits, group, "packed").tolist()


def test_every_scale_byte() -> None:
    ones = np.full((256, 8), 0x38383838, np.uint32)
    made = dequantize(ones, np.arange(256, dtype=np.uint8)[:, None], bits=8, group=32, mode="mxfp8")[:, 0]
    np.testing.assert_array_equal(made, golden()["e8m0"])


@pytest.mark.parametrize("bits", MODES["affine"].bits)
def test_pack_turns_back(bits: int) -> None:
    codes = np.random.default_rng(3).integers(0, 1 << bits, (3, 96), np.uint8)
    assert pack(codes, bits).shape == (3, 3 * bits)
    assert unpack(pack(codes, bits), bits).tolist() == codes.tolist()


def test_codes_run_over_word_ends() -> None:
    """By hand: 3 bits, code 10 is bits 30 to 32."""
    codes = np.zeros((1, 32), np.uint8)
    codes[0, 10] = 0b101
    assert pack(codes, 3).tolist() == [[1 << 30, 1, 0]]


def test_rounding_matters() -> None:
    """The golden file can tell one rounding from two: a product and sum in float32 differ in many values."""
    case = ("affine", 4, 64)
    arrays = [of("BF16", *case, what) for what in ("packed", "scales", "biases")]
    once = dequantize(*arrays, bits=4, group=64, dtype="F32")
    once = floats.decode(floats.encode(once, "BF16"), "BF16").reshape(once.shape)
    assert (once != of("BF16", *case, "values")).mean() > 0.2


def test_refusals_say_what_there_is() -> None:
    values = np.zeros((2, 96), np.float32)
    with pytest.raises(CodecError, match="multiple of MLX's group of 64"):
        quantize(values, "BF16", 4, 64)
    with pytest.raises(CodecError, match="no affine of 7 bits") as caught:
        quantize(values, "BF16", 7, 32)
    assert "2, 3, 4, 5, 6, 8" in str(caught.value.hint)
    with pytest.raises(CodecError, match="1 bit is read, not written"):
        quantize(values, "BF16", 1, 32)
    with pytest.raises(CodecError, match="unknown MLX mode"):
        dequantize(np.zeros((1, 4), np.uint32), np.zeros((1, 1), np.float32), bits=4, group=32, mode="mx")
    with pytest.raises(CodecError, match="no floating-point mode"):
        quantize_fp(values, "BF16", "affine")
    packed, scales, biases = quantize(values, "BF16", 4, 32)
    with pytest.raises(CodecError, match="does not go with"):
        dequantize(packed, scales, biases, bits=8, group=32)
    with pytest.raises(CodecError, match="without a bias"):
        dequantize(packed, scales, bits=4, group=32)
