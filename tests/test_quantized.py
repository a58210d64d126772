"""Weights with scales beside them: against torch, transformers, gguf-py and MLX's own output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from fixtures import releases
from mtptools.codecs import CODECS, decode, floats, fp4, fp8, mlx
from mtptools.errors import CodecError, ConventionError, CorruptError
from mtptools.quantized import (
    COMPANIONS,
    MlxLayout,
    beside,
    block_of,
    companions,
    logical,
    mlx_layout,
    scheme_of,
    stored_name,
)
from mtptools.tensors import NOWHERE, Blob, Tensor

RNG = np.random.default_rng(5)
Store = Callable[..., dict[str, Tensor]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """name=(codec, array of the stored bytes or of floats) as stored tensors; the shape is the array's."""

    def make(**parts: tuple[str, np.ndarray]) -> dict[str, Tensor]:
        out = {}
        for key, (codec, array) in parts.items():
            name = "m.x." + key
            data = floats.encode(array, codec) if array.dtype == np.float32 else array.tobytes()
            (tmp_path / name).write_bytes(b"pad" + data)
            out[name] = Tensor(name, array.shape, codec, (Blob(tmp_path / name, 3, len(data)),))
        return out

    return make


def read(tensors: dict[str, Tensor], name: str = "m.x.weight", **more: Any) -> np.ndarray:
    """The logical values; read in two uneven parts, which must be the whole."""
    stored = tensors[stored_name(name, tensors)]
    out = logical(stored, beside(name, tensors), **more)
    assert (out.name, out.codec) == (name, "F32")
    whole = decode(out)
    cut = max(1, out.n_rows // 3)
    parts = [decode(out, 0, cut), decode(out, cut, cut), decode(out, cut, out.n_rows)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    return whole.reshape(out.shape)


def codes(*shape: int) -> np.ndarray:
    """F8_E4M3 bytes without NaN."""
    return RNG.integers(0, 127, shape, np.uint8) | (RNG.integers(0, 2, shape, np.uint8) << 7)


def torch_fp8(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch")
    value: np.ndarray = (
        torch.from_numpy(weight).view(torch.float8_e4m3fn).float() * torch.from_numpy(np.ascontiguousarray(scale))
    ).numpy()
    return value


def spread(scale: np.ndarray, shape: tuple[int, ...], block: tuple[int, int]) -> np.ndarray:
    """Scales of blocks, one a value."""
    return scale.repeat(block[0], -2).repeat(block[1], -1)[..., : shape[-2], : shape[-1]]


def floats_of(*shape: int) -> np.ndarray:
    return RNG.uniform(0.001, 0.1, shape).astype(np.float32)


@pytest.mark.parametrize("codec", ["F32", "BF16"])
@pytest.mark.parametrize(
    ("shape", "block"),
    [((256, 384), (128, 128)), ((200, 320), (128, 128)), ((2, 200, 160), (128, 128)), ((70, 96), (32, 64))],
)
def test_fp8_in_blocks(store: Store, shape: tuple[int, ...], block: tuple[int, int], codec: str) -> None:
    weight = codes(*shape)
    scale = floats_of(*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
    scale = floats.decode(floats.encode(scale, codec), codec).reshape(scale.shape)
    tensors = store(weight=("F8_E4M3", weight), weight_scale_inv=(codec, scale))
    assert read(tensors, block=block).tobytes() == torch_fp8(weight, spread(scale, shape, block)).tobytes()


@pytest.mark.parametrize(
    ("shape", "scale", "over"),
    [
        ((40, 96), (40, 1), (40, 1)),
        ((40, 96), (40,), (40, 1)),
        ((40, 96), (1,), (1, 1)),
        ((40, 96), (), (1, 1)),
        ((40, 96), (1, 1), (1, 1)),
        ((1, 96), (1,), (1, 1)),
        ((3, 40, 96), (3, 40, 1), (3, 40, 1)),
        ((3, 40, 96), (3, 40), (3, 40, 1)),
        ((3, 40, 96), (3,), (3, 1, 1)),
        ((3, 40, 96), (3, 1, 1), (3, 1, 1)),
        ((3, 40, 96), (), (1, 1, 1)),
    ],
)
@pytest.mark.parametrize("suffix", ["weight_scale", "scale"])
def test_fp8_by_channel_and_tensor(
    store: Store, shape: tuple[int, ...], scale: tuple[int, ...], over: tuple[int, ...], suffix: str
) -> None:
    weight, factor = codes(*shape), np.asarray(floats_of(*scale), np.float32)
    parts = {"weight": ("F8_E4M3", weight), suffix: ("F32", factor), "input_scale": ("F32", floats_of(1))}
    assert read(store(**parts)).tobytes() == torch_fp8(weight, factor.reshape(over)).tobytes()


def transformers_value(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """transformers' dequantization at load: int8 is two FP4, uint8 scales are exponents."""
    torch = pytest.importorskip("torch")
    module = pytest.importorskip("transformers.integrations.finegrained_fp8")
    stored = torch.from_numpy(weight)
    stored = stored.view(torch.float8_e4m3fn) if weight.dtype == np.uint8 else stored
    op = module.Fp8Dequantize(None)
    out: np.ndarray = op._dequantize_one(stored, torch.from_numpy(scale), torch.float32).numpy()
    return out


@pytest.mark.parametrize("lead", [(), (3,)])
def test_deepseek_v4_experts(store: Store, lead: tuple[int, ...]) -> None:
    weight = RNG.integers(-128, 128, (*lead, 48, 64), np.int8)
    scale = RNG.integers(0, 240, (*lead, 48, 4), np.uint8)
    tensors = store(weight=("I8", weight), scale=("F8_E8M0", scale))
    values = read(tensors)
    assert values.shape == (*lead, 48, 128)
    assert values.tobytes() == transformers_value(weight, scale).tobytes()


def test_deepseek_v4_matrices_and_mxfp8(store: Store) -> None:
    weight, scale = codes(256, 384), RNG.integers(90, 160, (2, 3), np.uint8)
    expected = transformers_value(weight, scale).tobytes()
    assert read(store(weight=("F8_E4M3", weight), scale=("F8_E8M0", scale))).tobytes() == expected
    groups = RNG.integers(90, 160, (256, 12), np.uint8)
    expected = transformers_value(weight, groups).tobytes()
    for name in ("weight_scale", "weight_scale_inv"):
        assert read(store(**{"weight": ("F8_E4M3", weight), name: ("U8", groups)})).tobytes() == expected


def nvfp4(rows: int = 12, columns: int = 128) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ModelOpt's packed codes and scales of random values, and gguf-py's values of the same codes in its layout."""
    kind = gguf.GGMLQuantizationType.NVFP4
    scale = RNG.integers(8, 0x7E, (rows, columns // 16), np.uint8)
    value = RNG.integers(0, 16, (rows, columns // 16, 16), np.uint8)
    packed = (value[..., 0::2] | value[..., 1::2] << 4).reshape(rows, -1)
    halves = (value[..., :8] | value[..., 8:] << 4).reshape(rows, -1, 32)
    blocks = np.concatenate([scale.reshape(rows, -1, 4), halves], -1).reshape(rows, -1)
    return packed, scale, dequantize(blocks, kind).astype(np.float32)


def test_modelopt_nvfp4(store: Store) -> None:
    packed, scale, expected = nvfp4()
    parts = {"weight": ("U8", packed), "weight_scale": ("F8_E4M3", scale), "input_scale": ("F32", floats_of())}
    # A power of two, so that gguf-py's order of the products does not matter; then the order that ModelOpt has.
    values = read(store(**parts, weight_scale_2=("F32", np.array(0.125, np.float32))))
    assert np.array_equal(values, expected * np.float32(0.125))
    second = np.array(0.0123, np.float32)
    both = np.repeat(fp8.decode(scale, "F8_E4M3").reshape(scale.shape) * second, 16, 1)
    values = read(store(**parts, weight_scale_2=("F32", second)))
    assert values.tobytes() == (fp4.decode(packed).reshape(both.shape) * both).tobytes()


def test_compressed_tensors_nvfp4_divides(store: Store) -> None:
    packed, scale, expected = nvfp4()
    tensors = store(
        weight_packed=("U8", packed),
        weight_scale=("F8_E4M3", scale),
        weight_global_scale=("F32", np.array([8.0], np.float32)),
        input_global_scale=("F32", floats_of(1)),
    )
    assert stored_name("m.x.weight", tensors) == "m.x.weight_packed"
    assert np.array_equal(read(tensors), expected / np.float32(8))


def test_stacked_nvfp4_has_a_scale_an_expert(store: Store) -> None:
    packed, scale, expected = nvfp4()
    second = np.array([0.5, 2.0, 4.0], np.float32)
    tensors = store(
        weight=("U8", packed.reshape(3, 4, -1)),
        weight_scale=("F8_E4M3", scale.reshape(3, 4, -1)),
        weight_scale_2=("F32", second),
    )
    assert np.array_equal(read(tensors), expected.reshape(3, 4, -1) * second[:, None, None])


def test_nvfp4_without_its_second_scale_is_refused(store: Store) -> None:
    packed, scale, _ = nvfp4()
    with pytest.raises(CodecError, match="no layout known"):
        read(store(weight=("U8", packed), weight_scale=("F8_E4M3", scale)))


def test_mxfp4_packed_is_gguf_pys_value(store: Store) -> None:
    kind = gguf.GGMLQuantizationType.MXFP4
    blocks = gguf.quants.quantize(RNG.standard_normal((8, 96)).astype(np.float32), kind)
    packed, scale = fp4.from_mxfp4(blocks)
    values = read(store(weight_packed=("U8", packed), weight_scale=("U8", scale)))
    assert np.array_equal(values, dequantize(blocks, kind))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_mlx_affine(store: Store, lead: tuple[int, ...], dtype: str) -> None:
    """The arithmetic is held to MLX's own in tests/codecs/test_mlx.py; here the rows."""
    values = RNG.standard_normal((24, 128)).astype(np.float32)
    packed, scales, biases = mlx.quantize(values, dtype, 5, 32)
    shape = (*lead, 24 // (lead or (1,))[0])
    tensors = store(
        weight=("U32", packed.reshape(*shape, -1)),
        scales=(dtype, scales.reshape(*shape, -1)),
        biases=(dtype, biases.reshape(*shape, -1)),
    )
    expected = mlx.dequantize(packed, scales, biases, bits=5, group=32, dtype=dtype)
    assert read(tensors, mlx=MlxLayout(5, 32)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_mlx_floating_modes(store: Store, mode: str) -> None:
    values = RNG.standard_normal((10, 96)).astype(np.float32)
    packed, scales = mlx.quantize_fp(values, "F32", mode)
    layout = MlxLayout(mlx.MODES[mode].bits[0], mlx.MODES[mode].groups[0], mode)
    got = read(store(weight=("U32", packed), scales=("U8", scales)), mlx=layout)
    expected = mlx.dequantize(packed, scales, bits=layout.bits, group=layout.group, mode=mode)
    assert got.tobytes() == expected.tobytes()


def test_mlx_needs_the_config_and_its_shapes(store: Store) -> None:
    packed, scales, biases = mlx.quantize(floats_of(8, 128), "F32", 4, 64)
    tensors = store(weight=("U32", packed), scales=("F32", scales), biases=("F32", biases))
    with pytest.raises(ConventionError, match="no bits"):
        read(tensors)
    with pytest.raises(CorruptError, match="8 bits"):
        read(tensors, mlx=MlxLayout(8, 64))
    with pytest.raises(CodecError, match="mxfp4 does not go with F32 scales and biases"):
        read(tensors, mlx=MlxLayout(4, 64, "mxfp4"))


def test_mlx_layout_of_a_module() -> None:
    table = {"group_size": 64, "bits": 4, "mode": "affine", "mtp.fc": {"bits": 8}, "mtp.gate": False}
    table["m.experts"] = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    config = {"quantization": table}
    assert mlx_layout(config, "m.q_proj") == MlxLayout(4, 64)
    assert mlx_layout(config, "mtp.fc") == MlxLayout(8, 64)
    assert mlx_layout(config, "m.experts") == MlxLayout(4, 32, "mxfp4")
    assert mlx_layout(config, "mtp.gate") is None
    assert mlx_layout({}, "mtp.fc") is None
    assert mlx_layout(config, "language_model.mtp.fc") == MlxLayout(8, 64)
    floating = {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4", "gate": {"group_size": 64, "bits": 8}}}
    assert mlx_layout(floating, "gate") == MlxLayout(8, 64)  # an entry without a mode is affine
    assert mlx_layout(floating, "up") == MlxLayout(4, 32, "mxfp4")
    assert mlx_layout({"quantization": {**table, "up": True}}, "up") == MlxLayout(4, 64)
    with pytest.raises(CorruptError, match=r"mtp\.fc"):
        mlx_layout({"quantization": {"bits": "four", "group_size": 64}}, "mtp.fc")


def test_block_of_a_config() -> None:
    assert block_of({}) == (128, 128)
    assert block_of({"quantization_config": {"weight_block_size": [64, 32]}}) == (64, 32)
    with pytest.raises(CorruptError, match="not two sizes"):
        block_of({"quantization_config": {"weight_block_size": [128]}})


def test_floats_stand_alone(store: Store) -> None:
    weight = store(weight=("BF16", floats_of(4, 8)), k_scale=("F32", floats_of(1)))
    assert logical(weight["m.x.weight"], beside("m.x.weight", weight)) is weight["m.x.weight"]


@pytest.mark.parametrize(
    ("parts", "method"),
    [
        ({"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}, "GPTQ"),
        ({"qweight": "I32", "scales": "F16"}, "by GPTQ,"),
        ({"qweight": "I32"}, "GPTQ or AWQ"),
        ({"weight_packed": "I32", "weight_shape": "I64"}, "no layout known"),
        ({"weight_packed": "I32"}, "pack-quantized, whose scales are not there"),
        ({"weight_packed": "I32", "scale_packed": "BF16", "meta": "I16"}, "marlin-24"),
        ({"weight": "U8", "weight.absmax": "F32", "weight.quant_map": "F32"}, "bitsandbytes 4-bit"),
        ({"weight": "I8", "SCB": "F32"}, "bitsandbytes 8-bit"),
        ({"weight": "U8", "weight_scale": "F8_E4M3", "weight_scale_2": "F32", "pre_quant_scale": "BF16"}, "AWQ"),
        ({"weight": "F8_E4M3", "weight_scale": "F32", "weight_zero_point": "F8_E4M3"}, "weight_zero_point F8_E4M3"),
        ({"weight": "I8", "weight_scale": "F8_E4M3"}, "no layout known"),
        ({"weight": "BF16", "weight_scale": "F32"}, "no layout known"),
        ({"weight": "F8_E4M3"}, "no scale"),
        ({"weight": "U8"}, "no scale"),
    ],
)
def test_others_are_refused_by_name(parts: dict[str, str], method: str) -> None:
    tensors = {f"m.x.{key}": spare(f"m.x.{key}", codec, (32, 64)) for key, codec in parts.items()}
    with pytest.raises(CodecError, match=method) as error:
        logical(tensors[stored_name("m.x.weight", tensors)], beside("m.x.weight", tensors))
    assert "BF16 or FP8 release" in str(error.value.hint)


@pytest.mark.parametrize("scale", [(2, 2), (3, 2), (256,), (255, 1), (2,), (3, 2, 1)])
def test_scales_that_do_not_fit_are_refused(scale: tuple[int, ...]) -> None:
    weight = spare("m.x.weight", "F8_E4M3", (300, 300))
    with pytest.raises(CorruptError, match="do not fit"):
        logical(weight, {".weight_scale_inv": spare("m.x.weight_scale_inv", "F32", scale)})


def spare(name: str, codec: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of which only the header is known."""
    size = int(np.prod(shape)) * CODECS[codec].block_bytes
    return Tensor(name, shape, codec, (Blob(NOWHERE, 0, size),))


def test_names() -> None:
    names = {"a.weight", "a.weight_scale_inv", "a.bias", "b.weight", "e.gate_up_proj", "e.gate_up_proj_scale_inv"}
    assert companions("a.weight", names) == ("a.weight_scale_inv",)
    assert companions("b.weight", names) == ()
    assert companions("e.gate_up_proj", names) == ("e.gate_up_proj_scale_inv",)
    assert stored_name("c.weight", names) == "c.weight"
    packed = {"a.weight_packed", "a.weight_scale", "a.weight_global_scale", "a.input_global_scale"}
    assert set(companions("a.weight", packed)) == packed - {"a.weight_packed"}
    assert set(companions("a.weight_packed", packed)) == packed - {"a.weight_packed"}


@pytest.mark.parametrize("key", releases.names())
def test_every_tensor_of_a_release_is_a_weight_or_belongs_to_one(key: str) -> None:
    """Real names, types and shapes: each scale is claimed by one weight, whose logical shape it fits."""
    release = releases.load(key)
    tensors = {name: spare(name, spec.dtype, spec.shape) for name, spec in release.head.items()}
    claimed: list[str] = []
    for name, tensor in tensors.items():
        if name.endswith(COMPANIONS):
            continue
        found = beside(name, tensors)
        claimed += [other.name for other in found.values()]
        if tensor.codec in ("BF16", "F32", "I64"):
            assert not found
            continue
        scheme = scheme_of(tensor, found)
        assert scheme is not None, name
        shape = logical(tensor, found, block=block_of(release.config)).shape
        assert shape == ((*tensor.shape[:-1], 2 * tensor.shape[-1]) if scheme.packed else tensor.shape)
    assert sorted(claimed) == sorted(name for name in tensors if name.endswith(COMPANIONS))
