"""ggml's types decoded by compiled code: every bit against gguf-py."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from mtptools.codecs import CODECS, ggml
from mtptools.codecs.engine import Engine

pytestmark = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")

# Where each type's F16 numbers stand in a block.
HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "MXFP4": (),
}
# Zeros, subnormal numbers, the smallest and largest normal ones, infinities, NaN, and 1.
EXTREMES = np.array([0, 1, 2, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF, 0x3C00, 0x3555], "<u2")
EXTREMES = np.concatenate([EXTREMES, EXTREMES | 0x8000])

every_type = pytest.mark.parametrize("codec", HALVES)


def blocks(codec: str, n: int, seed: int = 0) -> np.ndarray:
    """Random bytes [n, block bytes], with all pairs of extreme numbers where the scales are."""
    made = np.random.default_rng(seed).integers(0, 256, (n, CODECS[codec].block_bytes), np.uint8)
    pairs = np.stack(np.meshgrid(EXTREMES, EXTREMES), axis=-1).reshape(-1, 2)
    for which, at in enumerate(HALVES[codec]):
        made[: len(pairs), at : at + 2] = np.ascontiguousarray(pairs[:n, which]).view(np.uint8).reshape(-1, 2)
    if codec == "MXFP4":
        made[:256, 0] = np.arange(256)[:n]
    return made


def by_gguf_py(data: np.ndarray, codec: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return dequantize(data.reshape(-1), gguf.GGMLQuantizationType[codec])


def compiled(data: np.ndarray, codec: str) -> np.ndarray:
    return ggml.decode(data.tobytes(), codec, CODECS[codec].block_values, engine="numba").reshape(-1)


def differing(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Values of other bits; one NaN is as good as another."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == np.float32
    same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    return int((~same).sum())


@every_type
@pytest.mark.parametrize("seed", [1, 2])
def test_bits_are_gguf_pys(codec: str, seed: int) -> None:
    data = blocks(codec, 4099, seed)
    theirs = by_gguf_py(data, codec)
    assert not differing(compiled(data, codec), theirs)
    # The hard cases are there.
    assert np.isfinite(theirs).mean() > 0.8
    assert np.isinf(theirs).any()
    assert codec == "MXFP4" or np.isnan(theirs).any()
    assert ((theirs == 0) & np.signbit(theirs)).any() or codec == "MXFP4"
    assert codec != "MXFP4" or ((theirs != 0) & (abs(theirs) < np.finfo(np.float32).tiny)).any()


@every_type
def test_every_byte_counts(codec: str) -> None:
    """Of one block, each bit turned: the same values change, in the same way."""
    size = CODECS[codec].block_bytes
    flips = np.packbits(np.eye(size * 8, dtype=np.uint8), axis=1)
    block = np.random.default_rng(3).integers(0, 256, size, np.uint8)
    for at in HALVES[codec]:
        block[at : at + 2] = 0, 0x3C  # 1
    data = flips ^ block
    theirs = by_gguf_py(data, codec)
    assert not differing(compiled(data, codec), theirs)
    rows = theirs.reshape(size * 8, -1)
    assert len(np.unique(rows.view(np.uint32), axis=0)) > 0.9 * size * 8


@every_type
def test_a_wrong_order_is_seen(codec: str) -> None:
    """Nibbles exchanged, neighbours exchanged, one bit lost: what the comparison above would say of such decoders."""
    data = blocks(codec, 64, 4) & 0x3B
    right = by_gguf_py(data, codec)
    values = compiled(data, codec).reshape(-1, 32)
    assert not differing(values.reshape(-1), right)
    assert differing(compiled(data << 4 | data >> 4, codec), right)
    assert differing(np.ascontiguousarray(values.reshape(-1, 2, 16)[:, ::-1]).reshape(-1), right)
    assert differing(np.ascontiguousarray(values.reshape(-1, 16, 2)[:, :, ::-1]).reshape(-1), right)
    assert differing(compiled(data & 0xFE, codec), right)


@every_type
def test_shapes(codec: str) -> None:
    """Rows of several blocks, no rows, bytes that may be written (of which no second version is compiled)."""
    from mtptools.codecs.decode_fast import KINDS

    data = blocks(codec, 12)
    rows = ggml.decode(data.tobytes(), codec, 3 * CODECS[codec].block_values, engine="numba")
    assert rows.shape == (4, 3 * CODECS[codec].block_values)
    assert not differing(rows.reshape(-1), by_gguf_py(data, codec))
    assert not differing(ggml.decode(bytearray(data), codec, 32, engine="numba").reshape(-1), rows.reshape(-1))
    assert ggml.decode(b"", codec, 256, engine="numba").shape == (0, 256)
    assert len(KINDS[codec].run.signatures) == 1


@every_type
@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_part_of_a_block(codec: str, engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"reshape|multiple"):
        ggml.decode(bytes(CODECS[codec].block_bytes + 1), codec, 32, engine=engine)


@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_infinity_times_zero_is_no_warning(engine: Engine) -> None:
    """Warnings are errors here, and the caller looks for what is not finite."""
    block = np.array([0x7C00], "<u2").tobytes() + bytes([0x88]) * 16  # code 8 is zero
    assert np.isnan(ggml.decode(block, "Q4_0", 32, engine=engine)).all()


def test_the_table_is_the_codecs() -> None:
    from mtptools.codecs.decode_fast import KINDS

    assert set(KINDS) == ggml.COMPILED == set(HALVES)
    for name, kind in KINDS.items():
        assert (kind.block_values, kind.block_bytes) == (CODECS[name].block_values, CODECS[name].block_bytes)


def run(code: str) -> str:
    start = (
        "import sys, numpy as np\nfrom mtptools.codecs import decode_bytes, ggml\n"
        "data = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8) & 0x3B\n"
        "data = data[: len(data) // 144 * 144].tobytes()\n"
        "few = lambda: decode_bytes(data, 'Q4_K', 256)\n"
        "loaded = lambda: 'mtptools.codecs.decode_fast' in sys.modules\n"
    )
    return subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=True).stdout


def test_little_data_does_not_import_numba() -> None:
    """The import takes longer than gguf-py takes for PATIENCE bytes; beyond them it is had by itself."""
    code = (
        "first = few()\n"
        "print(loaded(), 'numba' in sys.modules)\n"
        "for _ in range(ggml.PATIENCE // len(data) + 1):\n    last = few()\n"
        "print(loaded(), last.tobytes() == first.tobytes())\n"
    )
    assert run(code) == "False False\nTrue True\n"


def test_other_types_do_not_import_numba() -> None:
    code = (
        "for _ in range(ggml.PATIENCE // 66 // 4096 + 2):\n    decode_bytes(bytes(66 * 4096), 'TQ2_0', 256)\n"
        "print(loaded(), ggml._seen)\n"
    )
    assert run(code) == "False 0\n"


def test_without_numba() -> None:
    code = (
        "sys.modules['numba'] = None\n"
        "first = few()\n"
        "ggml.PATIENCE = 0\n"
        "print(few().tobytes() == first.tobytes(), loaded())\n"
        "try:\n    ggml.decode(data, 'Q4_K', 256, engine='numba')\nexcept ImportError:\n    print('refused')\n"
    )
    assert run(code) == "True False\nrefused\n"
