"""Encodings of safetensors, byte for byte what the libraries of such releases make; none of them is needed here.

fixtures/quant/encoded.py: transformers, compressed-tensors, ModelOpt. fixtures/mlx/make_codecs.py: MLX.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np
import pytest

from mtptools.codecs import decode, floats, fp8
from mtptools.codecs.mlx import MODES
from mtptools.errors import CodecError, UsageError
from mtptools.quantized import ENCODINGS, NAMES, encoded, encoding_named, encoding_of, fitting, logical
from mtptools.quantized import matrix as chunked
from mtptools.quantized.config import MlxLayout
from mtptools.tensors import Blob, Tensor
from mtptools.views import computed
from tests.conftest import FIXTURES

DTYPES = ("F32", "BF16", "F16")
GROUPS = (32, 64, 128)
LIBRARIES = {"nvfp4": "nvfp4", "modelopt": "nvfp4-modelopt"}


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / name) as arrays:
        return dict(arrays)


def libraries() -> dict[str, np.ndarray]:
    return golden("quant/encoded.npz")


def mlxs() -> dict[str, np.ndarray]:
    return golden("mlx/codecs.npz")


def of(values: np.ndarray, name: str = "m") -> Tensor:
    return computed(name, values.shape, "F32", lambda start, stop: np.ascontiguousarray(values[start:stop]))


def case(name: str) -> dict[str, bytes]:
    return {key.split("/")[1]: array.tobytes() for key, array in libraries().items() if key.startswith(f"{name}/")}


def read(tensor: Tensor) -> bytes:
    assert tensor.packed is not None
    return tensor.packed(0, tensor.n_rows)


def made(parts: tuple[Tensor, ...]) -> dict[str, bytes]:
    out = {part.name.removeprefix("m."): read(part) for part in parts}
    assert {part.name.removeprefix("m."): part.nbytes for part in parts} == {name: len(b) for name, b in out.items()}
    return out


def blocks(values: np.ndarray) -> np.ndarray:
    """As in fixtures/quant/encoded.py."""
    out = np.concatenate([values, -values, 3 * values, values])[:256]
    out[128:, 128:] = 0
    return out


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp8_is_transformers(dtype: str) -> None:
    source = of(blocks(libraries()["values"]))
    assert made(encoded(source, ENCODINGS["fp8-block128"], "m.weight", dtype=dtype)) == case(f"fp8-{dtype}")


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_int4_is_compressed_tensors(dtype: str, group: int) -> None:
    source = of(libraries()["values"])
    assert made(encoded(source, ENCODINGS[f"int4-g{group}"], "m.weight", dtype=dtype)) == case(f"int4-{dtype}-{group}")


@pytest.mark.parametrize("matrices", [1, 2])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_is_the_librarys(dtype: str, library: str, matrices: int) -> None:
    """Alone, and sharing the second scale with another matrix, three times as large."""
    values = libraries()["values"]
    other = of(3 * floats.rounded(values, dtype))
    fused = (of(values), other)[:matrices]
    parts = encoded(of(values), ENCODINGS[LIBRARIES[library]], "m.weight", dtype=dtype, fused=fused)
    assert made(parts) == case(f"{library}-{dtype}-{matrices}")


@pytest.mark.parametrize("name", [one.name for one in ENCODINGS.values() if one.dialect == "mlx"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mlx_is_mlxs(dtype: str, name: str) -> None:
    layout = ENCODINGS[name].layout
    assert layout is not None
    key = "{}-{}-{}".format(*layout)
    parts = {"packed": "weight", "scales": "scales", "biases": "biases"}
    wanted = {part: mlxs().get(f"{dtype}/{key}/{what}") for what, part in parts.items()}
    found = made(encoded(of(mlxs()["values"]), ENCODINGS[name], "m.weight", dtype=dtype))
    assert found == {part: array.tobytes() for part, array in wanted.items() if array is not None}


def test_every_width_and_group_of_mlx_is_there() -> None:
    affine = {f"mlx-affine-g{group}b{bits}" for bits in (2, 3, 4, 5, 6, 8) for group in GROUPS}
    wanted = affine | {f"mlx-{mode}" for mode in MODES if mode != "affine"}
    assert {one.name for one in ENCODINGS.values() if one.dialect == "mlx"} == wanted


ALL = [one for one in ENCODINGS.values() if not one.is_float]


@pytest.mark.parametrize("encoding", ALL, ids=lambda one: one.name)
def test_chunks_do_not_show(encoding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows asked for in any cut, decoded a few at a time: the same bytes; a ragged last block too."""
    values = blocks(libraries()["values"])[:200]
    parts = encoded(of(values), encoding, "m.weight")
    whole = [read(part) for part in parts]
    monkeypatch.setattr(chunked, "_CHUNK", 7 * values.shape[1])
    for part, expected in zip(encoded(of(values), encoding, "m.weight"), whole, strict=True):
        assert part.packed is not None
        assert read(part) == expected
        if part.n_rows > 1:
            assert part.packed(0, 1) + part.packed(1, part.n_rows) == expected
            assert part.packed(part.n_rows - 1, part.n_rows) == expected[-part.row_bytes :]


@pytest.mark.parametrize("encoding", ALL, ids=lambda one: one.name)
def test_a_chunk_of_rows_is_in_memory(encoding: Any) -> None:
    """However many rows of a small tensor of scales are asked for at once."""
    most = 0

    def rows(start: int, stop: int) -> np.ndarray:
        nonlocal most
        most = max(most, stop - start)
        return np.ones((stop - start, 4096), np.float32)

    for part in encoded(computed("m", (3000, 4096), "F32", rows), encoding, "m.weight"):
        read(part)
    assert 0 < most <= (1 << 20) // 4096


@pytest.mark.parametrize("encoding", ALL, ids=lambda one: one.name)
def test_what_is_written_is_read(encoding: Any, tmp_path: Any) -> None:
    """By the reader, which other tests hold against the libraries; and recognised for what it is."""
    values = floats.rounded(blocks(libraries()["values"])[:72, :128], "BF16")
    stored = {}
    for part in encoded(of(values), encoding, "m.weight", scales="BF16"):
        path = tmp_path / part.name
        path.write_bytes(read(part))
        stored[part.name.removeprefix("m")] = Tensor(part.name, part.shape, part.codec, (Blob(path, 0, part.nbytes),))
    weight = stored.pop(".weight", None) or stored.pop(".weight_packed")
    layout = None
    if encoding.layout is not None:
        mode, bits, group = encoding.layout
        layout = MlxLayout(bits, group, mode)
    out = logical(weight, stored, mlx=layout)
    assert out.shape == values.shape
    assert encoding_of(weight, stored, layout=layout) == encoding.name
    error = np.abs(decode(out, 4, 10) - values[4:10]).mean() / np.abs(values[4:10]).mean()
    bits = encoding.layout[1] if encoding.layout else 8 if "fp8" in encoding.name else 4
    bits = 4.5 if "fp8" in encoding.name else bits  # three of mantissa, one hidden
    assert 0 < error < 2.0 ** (1.5 - bits)


def test_codes_of_fp8_are_of_the_scale_as_it_is_stored() -> None:
    """BF16 scales: codes of the float32 scale are not the nearest ones any more."""
    torch = pytest.importorskip("torch", reason="torch rounds to F8_E4M3 here")
    values = blocks(libraries()["values"])
    parts = made(encoded(of(values), ENCODINGS["fp8-block128"], "m.weight", dtype="F32", scales="BF16"))
    scale = floats.decode(parts["weight_scale_inv"], "BF16").reshape(2, 2).repeat(128, 0).repeat(128, 1)
    steps = torch.from_numpy(np.clip(values / scale, -448, 448)).to(torch.float8_e4m3fn)
    nearest = steps.view(torch.uint8).numpy().reshape(-1)
    ours, exact = (np.frombuffer(data, np.uint8) for data in (parts["weight"], case("fp8-F32")["weight"]))
    assert (ours != nearest).mean() < 1e-3  # a reciprocal is used, as transformers does
    assert (exact != nearest).mean() > 5e-3


def test_a_stack_is_its_matrices() -> None:
    values = libraries()["values"]
    for name in ("mlx-affine-g64b4", "mlx-mxfp4", "int4-g32"):
        each = made(encoded(of(values), ENCODINGS[name], "m.weight"))
        stack = computed("m", (3, *values.shape), "F32", lambda a, b: np.tile(values, (3, 1))[a:b])
        found = made(encoded(stack, ENCODINGS[name], "m.weight"))
        assert {key: found[key] for key in found if key != "weight_shape"} == {
            key: 3 * data for key, data in each.items() if key != "weight_shape"
        }


def test_names() -> None:
    assert encoding_named("FP8", "hf").name == "fp8-block128"
    assert encoding_named("W4A16", "hf").name == encoding_named("int4", "hf").name == "int4-g128"
    assert encoding_named("4bit", "mlx").name == encoding_named("affine-g64b4", "mlx").name == "mlx-affine-g64b4"
    assert encoding_named("mxfp8", "mlx").name == "mlx-mxfp8"
    assert encoding_named("nvfp4", "mlx").name == "mlx-nvfp4"
    assert encoding_named("bf16", "mlx").is_float
    assert {"fp8", "8bit", "affine-g32b3", "int4-g64", "mxfp4"} <= set(NAMES)
    for dialect in ("hf", "mlx"):
        known = {name for name in NAMES if name in ENCODINGS and ENCODINGS[name].dialect in (None, dialect)}
        assert all(encoding_named(name, dialect).name.lower() == name for name in known)


@pytest.mark.parametrize(("text", "dialect"), [("Q8_0", "hf"), ("4bit", "hf"), ("fp8", "mlx"), ("affine-g64b7", "mlx")])
def test_a_type_that_is_not_there(text: str, dialect: Any) -> None:
    with pytest.raises(UsageError, match=f"{dialect.upper()} has no type '{text}'") as caught:
        encoding_named(text, dialect)
    assert caught.value.hint is not None
    assert ("fp8-block128" if dialect == "hf" else "mlx-mxfp4") in caught.value.hint


def test_rows_that_are_not_whole_groups() -> None:
    with pytest.raises(CodecError, match="rows of 96 values are not whole groups of 64") as caught:
        encoded(of(np.zeros((4, 96), np.float32)), ENCODINGS["mlx-affine-g64b4"], "m.weight")
    assert "mlx-affine-g32b4" in str(caught.value.hint)
    assert "g64" not in str(caught.value.hint)
    assert fitting(40, "hf") == ["F32", "BF16", "F16", "fp8-block128"]
    with pytest.raises(CodecError, match="matrices one by one") as caught:
        encoded(of(np.zeros((2, 4, 128), np.float32)), ENCODINGS["fp8-block128"], "m.weight")
    assert caught.value.hint == "--experts single"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers(value: float) -> None:
    values = libraries()["values"].copy()
    values[5, 7:9] = value
    for encoding in ALL:
        with pytest.raises(CodecError, match=rf"2 of {values.size} values are NaN or infinite") as caught:
            made(encoded(of(values, "m.weight"), encoding, "m.weight"))
        assert caught.value.where == "m.weight"


def test_values_below_any_scale() -> None:
    """Denormals: finite scales, codes of zero."""
    values = np.full((128, 128), 1e-40, np.float32)
    for encoding in ALL:
        for part in encoded(of(values), encoding, "m.weight", dtype="F32"):
            if part.codec in ("F32", "BF16", "F16"):
                assert np.isfinite(floats.decode(read(part), part.codec)).all(), encoding.name


@pytest.mark.interop
@pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="needs MLX: pip install 'mlx[cpu]'")
@pytest.mark.parametrize("name", [one.name for one in ALL if one.dialect == "mlx"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mlx_itself(name: str, dtype: str) -> None:
    """Another matrix than the goldens': a trained one, and 12 decades."""
    import mlx.core as mx

    rng = np.random.default_rng(5)
    values = rng.standard_normal((96, 512)).astype(np.float32) * np.float32(0.05)
    values[64:] *= (10.0 ** rng.uniform(-9, 3, (32, 512))).astype(np.float32)
    if dtype == "F16":
        values = np.clip(values, -3e4, 3e4)
    kind = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}[dtype]
    mode, bits, group = ENCODINGS[name].layout or ("", 0, 0)
    wanted = mx.quantize(mx.array(values).astype(kind), group_size=group, bits=bits, mode=mode)
    found = made(encoded(of(values), ENCODINGS[name], "m.weight", dtype=dtype)).values()
    for ours, theirs in zip(found, wanted, strict=True):
        array = theirs.view(mx.uint16) if theirs.dtype == mx.bfloat16 else theirs
        assert ours == np.array(array).tobytes()


def test_scales_that_are_powers_of_two() -> None:
    """scale_fmt ue8m0, by its definition: the least power of two under which the largest value is at most 448."""
    random = np.random.default_rng(3)
    values = (random.normal(0, 1, (256, 256)) * 2.0 ** (np.arange(256) % 40 - 20)[:, None]).astype(np.float32)
    values[128:, :128] = 0
    values[:128, 128:] = 0
    values[5, 200] = 448 * 2.0**-9
    parts = made(encoded(of(values), ENCODINGS["fp8-block128"], "m.weight", dtype="F32", scales="UE8M0"))
    scales = np.frombuffer(parts["weight_scale_inv"], np.float32).reshape(2, 2)
    fraction, _ = np.frexp(scales)
    assert (fraction == 0.5).all()
    assert scales[1, 0] == 1
    assert scales[0, 1] == 2.0**-9
    for row, column in ((0, 0), (1, 1)):
        largest = np.abs(values[128 * row :, 128 * column :][:128, :128]).max()
        assert largest / scales[row, column] <= 448 < 2 * largest / scales[row, column]
    codes = fp8.decode(parts["weight"], "F8_E4M3").reshape(256, 256)
    back = codes * np.repeat(np.repeat(scales, 128, 0), 128, 1)
    near = np.abs(back - values) <= np.maximum(
        np.abs(values) / 16, np.repeat(np.repeat(scales, 128, 0), 128, 1) * 2.0**-10
    )
    assert near.all()
