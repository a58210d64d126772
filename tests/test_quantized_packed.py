"""compressed-tensors' formats, against what the library itself decompresses: fixtures/quant/packed.py."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from mtptools.codecs import decode, floats
from mtptools.errors import CodecError, CorruptError
from mtptools.quantized import beside, logical, stored_name
from mtptools.tensors import Blob, Tensor
from tests.conftest import FIXTURES

ARRAYS = FIXTURES / "quant" / "packed.npz"
CODEC = {"int32": "I32", "int64": "I64", "int8": "I8", "uint16": "BF16", "float32": "F32", "float16": "F16"}


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(ARRAYS) as arrays:
        return dict(arrays)


CASES = sorted({name.split("/")[0] for name in golden()})


def case_of(case: str) -> dict[str, np.ndarray]:
    return {name.split("/")[1]: array for name, array in golden().items() if name.split("/")[0] == case}


def stored(folder: Path, case: str, **changed: np.ndarray | None) -> dict[str, Tensor]:
    """The tensors of a case in a file each; `changed` in place of some, or without them."""
    out = {}
    for part, array in (case_of(case) | changed).items():
        if part == "value" or array is None:
            continue
        codec = CODEC.get(str(array.dtype), "F8_E4M3" if "nvfp4" in case and part == "weight_scale" else "U8")
        name = f"m.x.{part}"
        (folder / name).write_bytes(b"pad" + array.tobytes())
        out[name] = Tensor(name, array.shape, codec, (Blob(folder / name, 3, array.nbytes),))
    return out


def value(tensors: dict[str, Tensor]) -> Tensor:
    name = stored_name("m.x.weight", tensors)
    return logical(tensors[name], beside(name, tensors))


@pytest.mark.parametrize("case", CASES)
def test_values_are_the_librarys(case: str, tmp_path: Path) -> None:
    """Once rounded to the type of the scales, as the library does; bit for bit."""
    out, expected = value(stored(tmp_path, case)), case_of(case)["value"]
    assert (out.name, out.codec, out.shape) == ("m.x.weight", "F32", expected.shape)
    made = decode(out)
    assert floats.encode(made, CODEC[str(expected.dtype)]) == expected.tobytes()
    cuts = [(0, 1), (1, 2), (2, 9), (9, 9), (9, out.n_rows)] if out.n_rows > 9 else [(0, 3), (3, out.n_rows)]
    assert np.concatenate([decode(out, *cut) for cut in cuts]).tobytes() == made.tobytes()


def test_the_golden_sees_the_faults() -> None:
    """Zero points and groups matter in every case that has them: a reader without them would not pass."""
    for case in CASES:
        arrays = case_of(case)
        if "weight_zero_point" in arrays:
            assert len(np.unique(arrays["weight_zero_point"].view(np.uint8))) > 3, case
        if "weight_g_idx" in arrays:
            assert (np.diff(arrays["weight_g_idx"]) < 0).sum() > 20, case
        assert len(np.unique(arrays["weight_scale"])) > 2, case


def test_an_order_that_was_never_filled_in_is_none(tmp_path: Path) -> None:
    case = "pack-4-32-sym-BF16"
    order = np.full(case_of(case)["weight_shape"][1], -1, np.int32)
    made = decode(value(stored(tmp_path, case, weight_g_idx=order)))
    assert floats.encode(made, "BF16") == case_of(case)["value"].tobytes()


def test_zero_points_that_are_not_packed(tmp_path: Path) -> None:
    """[r, groups] I8, of releases before they were packed: the same numbers."""
    case = "pack-4-32-asym-F32"
    words = case_of(case)["weight_zero_point"].view(np.uint32)
    codes = (words[:, None] >> np.arange(0, 32, 4, dtype=np.uint32)[:, None] & np.uint32(15)).reshape(
        -1, words.shape[1]
    )
    plain = codes[: case_of(case)["weight_shape"][0]].astype(np.int8) - np.int8(8)
    made = decode(value(stored(tmp_path, case, weight_zero_point=plain)))
    assert made.tobytes() == case_of(case)["value"].tobytes()


FAULTS: list[tuple[str, str, np.ndarray | None, str]] = [
    ("pack-4-32-sym-F32", "weight_shape", None, "weight_shape, its shape before packing, is not there"),
    ("pack-4-32-sym-F32", "weight_shape", np.array([20, 160]), r"weight_shape is \[20, 160\]|words"),
    ("pack-4-32-sym-F32", "weight_shape", np.array([24, 128]), r"weight_shape is \[24, 128\]"),
    ("pack-4-32-sym-F32", "weight_shape", np.array([20, -128]), r"weight_shape is \[20, -128\]"),
    ("pack-4-32-sym-F32", "weight_shape", np.array([20, 1 << 40]), "weight_shape is"),
    ("pack-4-32-sym-F32", "weight_shape", np.array([20, 2, 64]), r"weight_shape is I64\[3\], not a shape"),
    ("pack-4-32-sym-F32", "weight_scale", np.ones((20, 3), np.float32), r"scales \[20, 3\] do not fit"),
    ("pack-4-32-sym-F32", "weight_scale", np.ones((16, 4), np.float32), r"scales \[16, 4\] do not fit"),
    ("pack-4-32-sym-F32", "weight_scale", np.ones((0,), np.float32), "do not fit"),
    ("pack-4-32-asym-F32", "weight_zero_point", np.zeros((20, 4), np.int32), r"weight_zero_point is I32\[20, 4\]"),
    ("pack-4-32-asym-F32", "weight_zero_point", np.zeros((20, 3), np.int8), r"weight_zero_point is I8\[20, 3\]"),
    ("pack-4-32-asym-F32", "weight_zero_point", np.zeros((20, 4), np.float32), "weight_zero_point is F32"),
    ("pack-4-32-order-F32", "weight_g_idx", np.zeros(64, np.int32), r"weight_g_idx is I32\[64\]"),
    ("pack-4-32-order-F32", "weight_g_idx", np.full(128, 4, np.int32), "names groups 4 to 4, the scales have 4"),
    ("int-8-0-asym-F32", "weight_zero_point", np.zeros((20, 2), np.int8), r"weight_zero_point is I8\[20, 2\]"),
]


@pytest.mark.parametrize(("case", "part", "array", "said"), FAULTS)
def test_a_companion_that_does_not_fit_is_named(
    case: str, part: str, array: np.ndarray | None, said: str, tmp_path: Path
) -> None:
    with pytest.raises((CorruptError, CodecError), match=said) as error:
        decode(value(stored(tmp_path, case, **{part: array})))
    assert "m.x.weight" in str(error.value.where)
    assert part in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize(("columns", "words"), [(128, 12), (128, 24), (4, 1)])
def test_other_widths_are_refused(columns: int, words: int, tmp_path: Path) -> None:
    """3 and 6 bits; and so few columns that no width follows."""
    packed = np.zeros((20, words), np.int32)
    shape, scale = np.array([20, columns]), np.ones((20, 1), np.float32)
    tensors = stored(tmp_path, "pack-4-32-sym-F32", weight_packed=packed, weight_shape=shape, weight_scale=scale)
    with pytest.raises(CodecError, match="only widths of 2, 4, 8 bits") as error:
        value(tensors)
    assert error.value.exit_code == 5


def test_a_matrix_without_columns_is_refused(tmp_path: Path) -> None:
    empty = np.zeros((20, 0), np.int32)
    with pytest.raises(CorruptError, match="weight_shape is"):
        value(stored(tmp_path, "pack-4-32-sym-F32", weight_packed=empty, weight_shape=np.array([20, 0])))
