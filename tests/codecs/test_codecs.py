"""Codecs against gguf-py: sizes, and values bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from mtptools.codecs import CODECS, ENCODABLE, decode, decode_bytes, encode
from mtptools.errors import CodecError
from mtptools.tensors import Blob, Tensor

NO_DECODER = {"Q8_1", "Q8_K", "Q1_0"}  # gguf-py 0.19 has none for these
BLOCKS = [name for name, codec in CODECS.items() if codec.kind == "block"]


def test_sizes_are_ggmls() -> None:
    for kind, (values, size) in gguf.GGML_QUANT_SIZES.items():
        codec = CODECS[kind.name]
        assert (codec.ggml_id, codec.block_values, codec.block_bytes) == (int(kind), values, size)


def rows(codec: str, n_rows: int = 6) -> bytes:
    """Random blocks whose half-precision scales are finite."""
    data = np.random.default_rng(1).integers(0, 256, n_rows * 2 * CODECS[codec].row_bytes(256), np.uint8)
    return bytes((data & 0x3B).tobytes())


@pytest.mark.parametrize("codec", [name for name in BLOCKS if name not in NO_DECODER])
def test_decode_is_gguf_pys(codec: str) -> None:
    data = rows(codec)
    theirs = dequantize(np.frombuffer(data, np.uint8), gguf.GGMLQuantizationType[codec]).reshape(-1, 512)
    assert decode_bytes(data, codec, 512).tobytes() == theirs.astype(np.float32).tobytes()


@pytest.mark.parametrize("codec", ["F32", "F16", "BF16", "Q4_0", "Q8_0", "Q5_1"])
def test_encode_is_gguf_pys(codec: str) -> None:
    values = np.random.default_rng(2).standard_normal((5, 256)).astype(np.float32) * 10
    kind = gguf.GGMLQuantizationType[codec]
    assert encode(values, codec) == gguf.quants.quantize(values, kind).tobytes()


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    ticks = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0x7F800001, 0xFF800000, 0x7F7FFFFF], np.uint32)
    out = np.frombuffer(encode(ticks.view(np.float32)[None], "BF16"), np.uint16)
    assert out[:4].tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81]
    assert np.isnan(decode_bytes(out[4:5].tobytes(), "BF16", 1)).all()
    assert out[5:].tolist() == [0xFF80, 0x7F80]


def test_rows_of_several_blobs(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    path = tmp_path / "raw"
    path.write_bytes(values.tobytes())
    tensor = Tensor("x", (6, 2), "F32", (Blob(path, 16, 32), Blob(path, 0, 16)))
    assert decode(tensor, 3, 5).tolist() == [[10.0, 11.0], [0.0, 1.0]]
    assert decode(tensor).shape == (6, 2)


def test_errors_name_what_fits() -> None:
    values = np.zeros((1, 40), np.float32)
    with pytest.raises(CodecError) as caught:
        encode(values, "Q8_0")
    assert "F32, F16, BF16" in str(caught.value.hint)
    with pytest.raises(CodecError) as caught:
        encode(np.zeros((1, 256), np.float32), "TQ1_0")
    assert all(name in str(caught.value.hint) for name in ENCODABLE)
    with pytest.raises(CodecError):
        encode(values, "Q9_Z")
