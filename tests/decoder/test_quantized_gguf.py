"""A GGUF of any type that gguf-py decodes: the logits of an F32 file of gguf-py's values, bit for bit.

Types that gguf-py encodes hold a model's weights; the others blocks of random bytes that stand for small numbers.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import CODECS
from mtptools.containers.gguf import header_bytes, padded
from mtptools.decoder.load import load_model
from mtptools.decoder.parity import compare
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import Trace
from mtptools.errors import CodecError
from mtptools.tensors import Blob, Tensor
from tests import rewrite
from tests.decoder import toy

TYPES = (
    *("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
    *("TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
UNREAD = ("Q8_1", "Q8_K", "Q1_0")
IDS = [5, 17, 255, 3, 99, 42]


def test_these_are_all_types() -> None:
    named = {kind.name for kind in gguf.GGMLQuantizationType}
    assert {*TYPES, *UNREAD, "F32", "F64", "I8", "I16", "I32", "I64"} == named


@cache
def small_blocks(kind: str) -> np.ndarray:
    """Blocks [n, bytes] of random bytes, of which no value is large and not all are nothing."""
    rng, found = np.random.default_rng(1), np.empty((0, CODECS[kind].block_bytes), np.uint8)
    while len(found) < 100:
        blocks = rng.integers(0, 256, (20000, CODECS[kind].block_bytes), np.uint8)
        with np.errstate(all="ignore"):
            largest = np.abs(dequantize(blocks, gguf.GGMLQuantizationType[kind])).max(-1)
        found = np.concatenate([found, blocks[(largest > 0.01) & (largest < 0.3)]])
    return found


def encoded(kind: str, values: np.ndarray) -> np.ndarray:
    """Bytes [.., row bytes]."""
    try:
        return quantize(values, gguf.GGMLQuantizationType[kind])
    except NotImplementedError:
        pool, rng = small_blocks(kind), np.random.default_rng(2)
        shape = (*values.shape[:-1], values.shape[-1] // CODECS[kind].block_values)
        return pool[rng.integers(0, len(pool), shape)].reshape(*values.shape[:-1], -1)


def is_matrix(tensor: Tensor) -> bool:
    return len(tensor.shape) > 1 and "conv1d" not in tensor.name and "ffn_gate_inp" not in tensor.name


def typed(source: Path, out: Path, kind: str) -> Path:
    """A copy of an F32 file with every matrix in another type."""
    ckpt = open_checkpoint(source)
    tensors, datas = [], []
    for name, tensor in ckpt.items():
        data = tensor.read()
        if is_matrix(tensor):
            data = encoded(kind, np.frombuffer(data, np.float32).reshape(tensor.shape)).tobytes()
            tensor = Tensor(name, tensor.shape, kind, (Blob(out, 0, len(data)),))
        tensors.append(tensor)
        datas.append(data)
    with open(out, "wb") as file:
        file.write(header_bytes(ckpt.metadata, tensors, ckpt.files[0].alignment))
        for data in datas:
            file.write(data + bytes(padded(len(data), ckpt.files[0].alignment) - len(data)))
    return out


def widened(source: Path, out: Path, like: Path) -> Path:
    """gguf-py reads `source` and decodes it: the same file as F32."""
    values = {}
    for tensor in gguf.GGUFReader(source).tensors:
        if tensor.tensor_type != gguf.GGMLQuantizationType.F32:
            array = dequantize(tensor.data, tensor.tensor_type)
            values[tensor.name] = array.reshape([int(n) for n in reversed(tensor.shape)])
            assert np.isfinite(array).all()
    assert len(values) > 20
    return rewrite.gguf(like, out, drop=tuple(values), add=values)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_gguf(tmp_path_factory.mktemp("full") / "f32.gguf", toy.weights(True), True)


def outcome(path: Path, *, weights: str = "loaded") -> Trace:
    return decode_speculative(load_model(open_checkpoint(path), weights=weights, check=False), IDS, 5, 2)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_gguf_pys_value(kind: str, full: Path, tmp_path: Path) -> None:
    file = typed(full, tmp_path / f"{kind}.gguf", kind)
    ours, theirs = outcome(file), outcome(widened(file, tmp_path / "wide.gguf", full))
    assert compare(theirs, ours).equal
    assert ours.drafts == theirs.drafts
    assert not compare(outcome(full), ours).equal


def test_nvfp4_with_a_second_scale(full: Path, tmp_path: Path) -> None:
    """llama.cpp's converter keeps ModelOpt's second scale beside the tensor, one a file tensor or one an expert."""
    file = typed(full, tmp_path / "nvfp4.gguf", "NVFP4")
    one, each = "blk.2.attn_output", "blk.1.ffn_down_exps"
    scales = {one: np.array([0.37], np.float32), each: np.linspace(0.5, 1.5, toy.EXPERTS, dtype=np.float32)}
    beside = {f"{name}.scale": scale for name, scale in scales.items()}
    ours = rewrite.gguf(file, tmp_path / "scaled.gguf", add=beside | {f"{one}.input_scale": scales[one]})
    wide = widened(file, tmp_path / "wide.gguf", full)
    edits = {
        f"{name}.weight": lambda a, s=scale: a * s.reshape(-1, *[1] * (a.ndim - 1)) for name, scale in scales.items()
    }
    theirs = rewrite.gguf(wide, tmp_path / "values.gguf", edit=edits)
    assert compare(outcome(theirs), outcome(ours)).equal
    assert not compare(outcome(wide), outcome(ours)).equal


@pytest.mark.parametrize("kind", ["Q6_K", "IQ2_S", "NVFP4"])
def test_packed_matrices_give_the_same_bits(kind: str, full: Path, tmp_path: Path) -> None:
    file = typed(full, tmp_path / f"{kind}.gguf", kind)
    plain = decode_plain(load_model(open_checkpoint(file), weights="loaded", check=False), IDS, 5)
    assert compare(plain, outcome(file, weights="stored")).equal


@pytest.mark.parametrize("kind", UNREAD)
def test_a_type_that_is_not_decoded_is_named(kind: str, full: Path, tmp_path: Path) -> None:
    """ggml has them for activations, or gguf-py no decoder yet."""
    ckpt = open_checkpoint(full)
    name = "blk.1.ffn_down_exps.weight"
    size = ckpt[name].n_values // CODECS[kind].block_values * CODECS[kind].block_bytes
    out = tmp_path / "unread.gguf"
    tensors = [
        Tensor(t.name, t.shape, kind, (Blob(out, 0, size),)) if t.name == name else t for t in ckpt.tensors.values()
    ]
    with open(out, "wb") as file:
        file.write(header_bytes(ckpt.metadata, tensors, ckpt.files[0].alignment))
        for tensor in tensors:
            data = bytes(size) if tensor.name == name else tensor.read()
            file.write(data + bytes(padded(len(data), ckpt.files[0].alignment) - len(data)))
    with pytest.raises(CodecError, match=f"cannot decode {kind}") as error:
        load_model(open_checkpoint(out), check=False)
    assert (error.value.where, error.value.exit_code) == (name, 5)
    assert "another quantization" in str(error.value.hint)
