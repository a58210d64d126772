"""Real ggml in a process of its own: what it gives, what it refuses, and that no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from mtptools.codecs import CODECS, ggml_library
from mtptools.codecs.ggml_library import NEEDS_IMPORTANCE, TYPES, available, quantize
from mtptools.errors import CodecError, MissingExtraError, SystemFailure

needs_ggml = pytest.mark.skipif(available() is None, reason="no wheel that carries ggml: pip install xllamacpp")

RNG = np.random.default_rng(4)
VALUES = RNG.standard_normal((8, 512)).astype(np.float32)
IMPORTANCE = RNG.random(512).astype(np.float32) + np.float32(0.1)
# The relative error of a Gaussian matrix, rounded up: a type that came out as another, or as noise, is beyond it.
ERRORS = {"IQ1_S": 0.55, "IQ1_M": 0.52, "IQ2_XXS": 0.38, "IQ2_XS": 0.34, "IQ2_S": 0.28, "IQ3_XXS": 0.21, "IQ3_S": 0.16}


# ggml makes tables for IQ types when it first meets one: seconds. The two of IQ1 share theirs.
TOGETHER = [("IQ1_S", "IQ1_M"), *((name,) for name in TYPES if not name.startswith("IQ1"))]


@pytest.fixture
def _none_idle() -> Iterator[None]:
    """The test starts and ends without processes."""
    ggml_library._close_all()
    yield
    ggml_library._close_all()


fresh = pytest.mark.usefixtures("_none_idle")


def test_numbers_are_ggufs() -> None:
    assert {name: CODECS[name].ggml_id for name in TYPES} == TYPES


@needs_ggml
@pytest.mark.parametrize("codec", ["Q4_0", "Q5_1", "Q8_0", "MXFP4", "TQ1_0"])
def test_bytes_are_gguf_pys(codec: str) -> None:
    theirs = gguf.quants.quantize(VALUES, gguf.GGMLQuantizationType[codec])
    assert np.array_equal(quantize(VALUES, codec), theirs)


@needs_ggml
@pytest.mark.parametrize("codecs", TOGETHER, ids="+".join)
def test_decoders_agree(codecs: tuple[str, ...]) -> None:
    """gguf-py's decoder, which is ours too, and ggml's own, on what ggml encodes."""
    for codec in codecs:
        blocks = quantize(VALUES, codec, IMPORTANCE)
        assert blocks.shape == (8, CODECS[codec].row_bytes(512))
        theirs = np.asarray(dequantize(blocks, gguf.GGMLQuantizationType[codec]), np.float32)
        assert ggml_library.dequantize(blocks, codec, 512).tobytes() == theirs.tobytes()
        if codec in ERRORS:
            assert np.sqrt(np.mean((theirs - VALUES) ** 2) / np.mean(VALUES**2)) < ERRORS[codec]


@needs_ggml
def test_importance_counts() -> None:
    assert not np.array_equal(quantize(VALUES, "IQ3_S"), quantize(VALUES, "IQ3_S", IMPORTANCE))


@needs_ggml
@fresh
@pytest.mark.parametrize("codec", ["IQ1_S", "IQ2_XXS", "IQ2_XS"])
def test_an_abort_is_an_error_and_the_next_call_starts_anew(codec: str) -> None:
    """Types for which ggml aborts without importance are refused before; here it is let run."""
    quantize(VALUES, "Q8_0")
    (child,) = ggml_library._IDLE
    with pytest.raises(SystemFailure, match=f"{codec}.*GGML_ASSERT"):
        ggml_library._quantize(VALUES, codec, None)
    assert child.process.returncode == -signal.SIGABRT
    assert not ggml_library._IDLE
    assert quantize(VALUES, "Q8_0").shape == (8, 544)


@fresh
@pytest.mark.parametrize("codec", sorted(NEEDS_IMPORTANCE))
def test_importance_is_demanded(codec: str) -> None:
    with pytest.raises(CodecError) as caught:
        quantize(VALUES, codec)
    assert "mtptools imatrix" in str(caught.value.hint)
    assert not ggml_library._IDLE


def test_without_a_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml_library, "_library", lambda: None)
    assert available() is None
    with pytest.raises(MissingExtraError) as caught:
        quantize(VALUES, "IQ3_S")
    assert caught.value.hint == "pip install 'mtptools[ggml]'"


@needs_ggml
@fresh
def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodecError, match="rows of 288 values"):
        quantize(VALUES[:, :288], "Q4_K")
    with pytest.raises(CodecError, match="512 importances for rows of 256"):
        quantize(VALUES[:, :256], "Q4_K", IMPORTANCE)
    with pytest.raises(CodecError, match="no encoder for F16"):
        quantize(VALUES, "F16")
    monkeypatch.setitem(TYPES, "IQ9_X", TYPES["IQ3_S"])
    with pytest.raises(CodecError, match="no type IQ9_X"):
        quantize(VALUES, "IQ9_X")
    assert len(ggml_library._IDLE) == 1  # one process answered all of it


def test_a_file_that_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "ggml.so"
    path.write_bytes(b"not a library")
    monkeypatch.setattr(ggml_library, "_library", lambda: ("ggml", path))
    with pytest.raises(SystemFailure, match="OSError"):
        quantize(VALUES, "Q8_0")


@needs_ggml
@fresh
def test_threads_have_processes_of_their_own() -> None:
    chunks = [RNG.standard_normal((64, 2048)).astype(np.float32) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda chunk: quantize(chunk, "IQ4_XS"), chunks))
    assert 1 < len(ggml_library._IDLE) <= 4
    assert all(np.array_equal(a, quantize(chunk, "IQ4_XS")) for a, chunk in zip(together, chunks, strict=True))


@needs_ggml
@fresh
def test_an_interrupted_exchange_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(VALUES, "Q8_0")
    (child,) = ggml_library._IDLE

    def interrupted(size: int) -> bytearray:
        raise KeyboardInterrupt

    monkeypatch.setattr(child, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize(VALUES, "Q8_0")
    assert not ggml_library._IDLE
    assert child.process.returncode is not None


SCRIPT = """
import sys, time, numpy
from mtptools.codecs import ggml_library
ggml_library.quantize(numpy.ones((4, 256), numpy.float32), "Q4_K")
print(ggml_library._IDLE[0].process.pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


@needs_ggml
@pytest.mark.parametrize("killed", [False, True])
def test_the_process_ends_with_its_parent(killed: bool) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, "600" if killed else "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if killed:
            os.kill(parent.pid, signal.SIGKILL)
        _, complaints = parent.communicate(timeout=60)
    assert complaints == ""
    assert _ends(pid)


def _ends(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
            status = Path(f"/proc/{pid}/stat")
            if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # ended, and whoever adopted it has not looked yet
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
