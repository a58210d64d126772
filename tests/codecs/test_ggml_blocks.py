"""Q4_0 to Q5_1, IQ4 and ggml's FP4 types: every byte against ggml's C code, and against digests of its bytes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import gguf
import numpy as np
import pytest

from fixtures.block_digests import COLS, OUT, ROWS, TYPES, digests
from fixtures.ggml_cases import importances, matrices
from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import CODECS, decode, ggml_fp4, ggml_library, iq4, legacy
from tests.conftest import FIXTURES

needs_ggml = pytest.mark.skipif(
    ggml_library.available() is None, reason="no wheel that carries ggml: pip install xllamacpp"
)

MODULES: dict[str, ModuleType] = {name: module for module in (legacy, iq4, ggml_fp4) for name in module.TYPES}
DIGESTS = json.loads(OUT.read_text(encoding="utf-8"))
every_type = pytest.mark.parametrize("codec", TYPES)


def encode(values: np.ndarray, codec: str, importance: np.ndarray | None = None) -> np.ndarray:
    return MODULES[codec].encode(values, codec, importance)


def differing(ours: np.ndarray, theirs: np.ndarray, codec: str) -> int:
    """Blocks that are not the same."""
    size = CODECS[codec].block_bytes
    assert ours.shape == theirs.shape
    return int((ours.reshape(-1, size) != theirs.reshape(-1, size)).any(axis=1).sum())


SEARCHED = [*legacy.TYPES, *iq4.TYPES]
ENGINES = [
    "numpy",
    pytest.param("numba", marks=pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")),
]


@every_type
def test_digests_of_cs_bytes(codec: str) -> None:
    """Needs no ggml. fixtures/block_digests.py made them."""
    assert digests(encode, codec) == DIGESTS[codec]


@pytest.mark.parametrize("codec", SEARCHED)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_has_the_same_bytes(codec: str, engine: str) -> None:
    def run(values: np.ndarray, name: str, row: np.ndarray | None) -> np.ndarray:
        return MODULES[name].encode(values, name, row, engine=engine)

    assert digests(run, codec) == DIGESTS[codec]


@needs_ggml
@every_type
@pytest.mark.parametrize("seed", [2, 3])
def test_bytes_are_cs(codec: str, seed: int) -> None:
    """More groups than a tile has in the large matrices, and other values than the digests'."""
    rows, cols = (40, 1024) if seed == 2 else (5, 256)
    for name, values in matrices(rows, cols, seed).items():
        for row_name, row in importances(cols, seed).items():
            if seed == 2 and row_name not in ("none", "some zero", "10 decades"):
                continue
            wrong = differing(encode(values, codec, row), ggml_library.quantize(values, codec, row), codec)
            assert not wrong, f"{name}, importance {row_name}"


@needs_ggml
@every_type
@pytest.mark.parametrize("family", ["qwen35", "glm4moe", "deepseekv4"])
def test_trained_rows(codec: str, family: str) -> None:
    checkpoint = open_checkpoint(FIXTURES / family / "hf")
    matrices_of = [tensor for tensor in checkpoint.values() if tensor.codec == "BF16" and tensor.shape[-1] % 256 == 0]
    assert len(matrices_of) > 10
    for tensor in matrices_of[::3]:
        if len(tensor.shape) < 2:
            continue
        values = decode(tensor, 0, min(tensor.n_rows, 24))
        for row in (None, importances(values.shape[1])["positive"]):
            theirs = ggml_library.quantize(values, codec, row)
            assert not differing(encode(values, codec, row), theirs, codec), tensor.name


@needs_ggml
@every_type
def test_few_groups(codec: str) -> None:
    """A lone block, where a sum over groups is a sum over nothing else, and rows of odd numbers of blocks."""
    block = CODECS[codec].block_values
    for blocks in (1, 3):
        for rows in (1, 2):
            values = matrices(rows, 768, 5)["outliers"][:, : blocks * block]
            row = importances(768)["positive"]
            for weights in (None, None if row is None else row[: blocks * block]):
                theirs = ggml_library.quantize(values, codec, weights)
                assert not differing(encode(values, codec, weights), theirs, codec)
    assert encode(np.empty((0, 768), np.float32), codec).shape == (0, CODECS[codec].row_bytes(768))


@pytest.mark.parametrize("codec", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"])
def test_gguf_py_differs_in_the_sign_of_zero_alone(codec: str) -> None:
    """gguf-py is the other implementation: what is said of it must be so, and where it is mended, say so here."""
    kind = gguf.GGMLQuantizationType[codec]
    parts = set()
    for name, values in matrices(16, 768).items():
        with np.errstate(all="ignore"):
            theirs = gguf.quants.quantize(values, kind)
        if differing(encode(values, codec), theirs, codec):
            parts.add(name)
            decoded = gguf.quants.dequantize(encode(values, codec), kind), gguf.quants.dequantize(theirs, kind)
            assert np.array_equal(*decoded)
    # Where all are minus zero, Q4_0's scale; where a minimum is one of both zeros, Q4_1's minimum.
    expected = {"Q4_0": {"minus zeros", "both zeros"}, "Q4_1": {"both zeros", "positive and both zeros"}}
    expected["Q4_1"] |= {"levels and both zeros"}
    assert parts == expected.get(codec.replace("5", "4"), set())


def test_iq4_takes_the_nearest_value() -> None:
    """The table against the definition: the nearest, and of two the upper one."""
    ticks = np.arange(-300, 301, dtype=np.float32) / 4
    ticks = np.concatenate([ticks, ticks * 2, np.nextafter(ticks, np.float32(np.inf)), np.nextafter(ticks, -np.inf)])
    distance = np.abs(ticks.astype(np.float64)[:, None] - iq4.GRID)
    upper = 15 - distance[:, ::-1].argmin(axis=1)
    x = np.ascontiguousarray(np.resize(ticks, (32, 80)).astype(np.float32))
    packed = iq4._codes(x, np.ones(80, np.float32))
    codes = np.concatenate([packed.T & 15, packed.T >> 4])
    assert np.array_equal(codes, np.resize(upper, (32, 80)))


@every_type
def test_importance_moves_the_error(codec: str) -> None:
    """Half the columns count a thousand times as much: they come out better, where the type takes importance."""
    values = matrices(64, 512)["normal"]
    row = np.where(np.arange(512) % 2 == 0, 1000, 1).astype(np.float32)
    errors = []
    for weights in (None, row):
        blocks = encode(values, codec, weights)
        back = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[codec])
        errors.append(((back - values) ** 2)[:, ::2].sum())
    assert errors[1] < 0.95 * errors[0] if codec not in ggml_fp4.TYPES else errors[1] == errors[0]


def test_the_digests_are_of_all_cases() -> None:
    assert set(DIGESTS) == set(TYPES) == set(MODULES)
    assert all(set(found) == set(matrices(ROWS, COLS)) for found in DIGESTS.values())
    assert len({digest for found in DIGESTS.values() for digest in found.values()}) > 200
    assert Path(OUT).parent == Path(__file__).parent
