"""Q2_K to Q6_K: every byte against ggml's C code, and against digests of its bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import gguf
import numpy as np
import pytest

from fixtures.ggml_cases import importances, matrices
from fixtures.ggml_digests import OUT, TYPES, digests, hard
from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import CODECS, decode, ggml_library, kquants, ksearch
from mtptools.codecs.engine import Engine
from mtptools.codecs.kquants import encode
from tests.conftest import FIXTURES

DIGESTS = json.loads(OUT.read_text(encoding="utf-8"))

needs_ggml = pytest.mark.skipif(
    ggml_library.available() is None, reason="no wheel that carries ggml: pip install xllamacpp"
)
needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
every_type = pytest.mark.parametrize("codec", TYPES)
every_engine = pytest.mark.parametrize("engine", ["numpy", pytest.param("numba", marks=needs_numba)])


def differing(ours: np.ndarray, theirs: np.ndarray, codec: str) -> int:
    """Superblocks that are not the same."""
    size = CODECS[codec].block_bytes
    assert ours.shape == theirs.shape
    return int((ours.reshape(-1, size) != theirs.reshape(-1, size)).any(axis=1).sum())


@every_type
@every_engine
def test_digests_of_cs_bytes(codec: str, engine: Engine) -> None:
    """Needs no ggml. fixtures/ggml_digests.py made them."""
    made = digests(lambda values, name, row: encode(values, name, row, engine=engine), codec)
    assert made == DIGESTS[codec]


@needs_ggml
@every_type
@every_engine
@pytest.mark.parametrize("row", ["none", "positive", "some zero", "10 decades"])
def test_bytes_are_cs(codec: str, engine: Engine, row: str) -> None:
    """More superblocks than a tile, and other values than the digests'."""
    values = np.concatenate(list(matrices(13, 1024, 2).values()))
    assert len(values) * 4 > ksearch.TILE
    importance = importances(1024, 3)[row]
    theirs = ggml_library.quantize(values, codec, importance)
    assert not differing(encode(values, codec, importance, engine=engine), theirs, codec)


@needs_ggml
@every_type
@every_engine
@pytest.mark.parametrize("family", ["qwen35", "glm4moe", "deepseekv4"])
def test_trained_rows(codec: str, engine: Engine, family: str) -> None:
    checkpoint = open_checkpoint(FIXTURES / family / "hf")
    found = [t for t in checkpoint.values() if t.codec == "BF16" and len(t.shape) > 1 and t.shape[-1] % 256 == 0]
    assert len(found) > 5
    for tensor in found[::4]:
        values = decode(tensor, 0, min(tensor.n_rows, 32))
        for importance in (None, importances(values.shape[1])["positive"]):
            theirs = ggml_library.quantize(values, codec, importance)
            assert not differing(encode(values, codec, importance, engine=engine), theirs, codec), tensor.name


@needs_ggml
@every_type
@every_engine
def test_few_superblocks(codec: str, engine: Engine) -> None:
    """A lone superblock, where numpy would add in another order, and rows of an odd number of them."""
    for rows, cols in ((1, 256), (2, 256), (1, 768), (3, 1280)):
        values = matrices(rows, cols, 5)["outliers"]
        for importance in (None, importances(cols)["positive"]):
            theirs = ggml_library.quantize(values, codec, importance)
            assert not differing(encode(values, codec, importance, engine=engine), theirs, codec)


@every_type
@every_engine
def test_shapes_and_strides(codec: str, engine: Engine) -> None:
    size = CODECS[codec].row_bytes(512)
    assert encode(np.empty((0, 512), np.float32), codec, engine=engine).shape == (0, size)
    values = matrices(4, 1024)["normal"]
    kept = values.copy()
    strided = encode(values[::2, :512], codec, engine=engine)
    assert strided.shape == (2, size)
    assert strided.dtype == np.uint8
    assert np.array_equal(strided, encode(values[::2, :512].copy(), codec, engine=engine))
    assert np.array_equal(values, kept)


@every_type
def test_importance_moves_the_error(codec: str) -> None:
    """Half the columns count a thousand times as much: they come out better."""
    values = matrices(64, 512)["normal"]
    row = np.where(np.arange(512) % 2 == 0, 1000, 1).astype(np.float32)
    errors = []
    for weights in (None, row):
        back = gguf.quants.dequantize(encode(values, codec, weights), gguf.GGMLQuantizationType[codec])
        errors.append(((back - values) ** 2)[:, ::2].sum())
    assert errors[1] < 0.97 * errors[0]


@pytest.mark.parametrize("columns", [1, 2, 7, 8, 9, 255, 4096, 16384])
def test_sums_go_from_the_first_to_the_last(columns: int) -> None:
    """What every search rests on, of which numpy promises nothing."""
    values = np.ldexp(np.random.RandomState(0).randint(-999, 999, (32, columns)), np.arange(32)[:, None] % 24)
    values = values.astype(np.float32)
    expected = np.zeros(columns, np.float32)
    for row in values:
        expected = (expected + row).astype(np.float32)
    assert np.array_equal(ksearch.total(values), expected)
    if columns == 1:
        assert not np.array_equal(np.add.reduce(np.ascontiguousarray(values[:, 0])), expected[0])


def test_rounding() -> None:
    """Ties to even, and beyond ±2^22 what the low bits hold, as in C."""
    values = np.array([0.5, 1.5, -0.5, -2.5, 2.4999998, 4194302.5, np.nan, np.inf, -np.inf], np.float32)
    assert ksearch.nearest(values).tolist() == [0, 2, 0, -2, 2, 4194302, 0, -4194304, -4194304]


@needs_numba
@pytest.mark.parametrize("cut", [True, False])
def test_searches_agree_beyond_the_rounding(cut: bool) -> None:
    """Where weights are zero a range may shrink to a sliver, and values lie 2^22 codes away from it."""
    from mtptools.codecs import kfast

    x = np.ascontiguousarray(hard(256, 1024, 3)["few among tiny negatives"].reshape(-1, 16).T)
    random = np.random.RandomState(0)
    w = (random.randint(0, 2**20, x.shape) * (random.randint(0, 10, x.shape) < 3) / 2.0**20).astype(np.float32)
    grid = ksearch.Grid(-0.9, 0.05, 36, cut=cut)
    with np.errstate(all="ignore"):
        ours, compiled = ksearch.affine(x, w, 3, grid), kfast.affine(x, w, 3, grid)
        other = ksearch.affine(x, w, 3, ksearch.Grid(-0.9, 0.05, 36, cut=not cut))
    assert all(np.array_equal(a, b) for a, b in zip(ours, compiled, strict=True))
    assert not np.array_equal(ours[2], other[2])


def test_without_numba() -> None:
    """numba is an extra: without it the numpy searches run, and asking for it fails."""
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import numpy as np\n"
        "from mtptools.codecs import kquants\n"
        "from mtptools.codecs.engine import twin\n"
        "assert twin('kfast', None) is None\n"
        "assert kquants.encode(np.ones((1, 256), np.float32), 'Q4_K').shape == (1, 144)\n"
        "try:\n    twin('kfast', 'numba')\nexcept ImportError:\n    print('refused')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "refused\n"


def test_the_digests_are_of_all_cases() -> None:
    assert set(DIGESTS) == set(TYPES) == set(kquants.TYPES)
    assert all(set(found) == set(hard(1, 256)) for found in DIGESTS.values())
    assert len({digest for found in DIGESTS.values() for digest in found.values()}) > 100
