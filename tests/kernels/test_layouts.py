"""Slabs, where the kernels can run, and what stands in a report."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from mtptools.codecs import CODECS
from mtptools.decoder import kernels
from mtptools.decoder.kernels import launch
from mtptools.decoder.kernels.apart import f8_slab, fp4_slab, mlx_slab
from mtptools.decoder.kernels.layouts import KINDS, slab_of
from mtptools.decoder.kernels.table import FUNCTIONS, TILES
from mtptools.errors import CodecError, CorruptError
from tests.kernels.samples import CPU, sample


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.fields])
def test_as_many_bytes_as_the_file(kind: str) -> None:
    slab, _ = sample(kind, 3, 512)
    assert slab.nbytes == 3 * CODECS[kind].row_bytes(512)
    assert sum(n_bytes for n_bytes, _ in KINDS[kind].fields) == CODECS[kind].block_bytes
    assert all(plane.is_contiguous() and plane.shape[0] == 3 for plane in slab.planes)


def test_tables_agree() -> None:
    assert KINDS.keys() == FUNCTIONS.keys() == TILES.keys()
    assert all(kind.width >= 16 for kind in KINDS.values()), "a matrix instruction takes 16 columns"


@pytest.mark.parametrize(
    ("step", "k", "steps"), [(32, 5120, 8), (32, 4192, 1), (32, 4288, 2), (64, 320, 1), (256, 512, 1)]
)
def test_steps_under_way(step: int, k: int, steps: int) -> None:
    assert TILES["Q8_0"].steps(step, k) == steps


def test_no_rows() -> None:
    slab = slab_of("Q4_K", b"", 512, CPU)
    assert slab.shape == (0, 512)
    assert launch.values(slab, torch.float32).shape == (0, 512)


def test_refused_bytes() -> None:
    with pytest.raises(CodecError, match="no kernel reads I32"):
        slab_of("I32", b"\0" * 64, 16, CPU)
    with pytest.raises(CodecError, match="no kernel reads MLX_4"):
        slab_of("MLX_4", b"\0" * 64, 16, CPU)
    with pytest.raises(CodecError, match="not a multiple of Q4_K's block"):
        slab_of("Q4_K", b"\0" * 144, 128, CPU)
    with pytest.raises(CorruptError, match="143 bytes are not rows of 256 Q4_K values"):
        slab_of("Q4_K", b"\0" * 143, 256, CPU)


def test_refused_planes() -> None:
    octets = np.zeros((2, 64), np.uint8)
    with pytest.raises(CorruptError, match=r"scales \[2, 3\] do not fit \[2, 64\] in groups of 32"):
        f8_slab(octets, np.ones((2, 3), np.float32), 32, CPU)
    with pytest.raises(CodecError, match="rows of 64 values in groups of 48"):
        f8_slab(octets, np.ones((2, 2), np.float32), 48, CPU)
    with pytest.raises(CodecError, match="not finite"):
        fp4_slab(octets, np.full((2, 4), 255, np.uint8), CPU)
    scales = np.ones((2, 2), np.float32)
    with pytest.raises(CodecError, match="MLX's 3 bits"):
        mlx_slab(np.zeros((2, 6), np.uint32), scales, scales, torch.float32, 3, 32, CPU)
    with pytest.raises(CorruptError, match="do not fit"):
        mlx_slab(np.zeros((2, 8), np.uint32), scales, scales[:1], torch.float32, 4, 32, CPU)


def test_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:0")
    assert kernels.unavailable(CPU) is None, "these tests run in the interpreter"
    assert kernels.unavailable(torch.device("mps")) == "they are for CUDA, and this is mps"
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert "cannot build its launcher" in str(kernels.unavailable(gpu)), "there is no driver here"
    monkeypatch.setattr(kernels, "launcher_missing", lambda: None)
    for capability, reason in {(7, 5): "compute capability 7.5 is below 8.0", (8, 0): None, (12, 0): None}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert kernels.unavailable(gpu) == reason
    monkeypatch.setattr("triton.__version__", "3.2.0")
    assert kernels.unavailable(gpu) == "triton 3.2.0 is older than 3.3"
    monkeypatch.setattr(kernels, "find_spec", lambda _: None)
    assert kernels.unavailable(gpu) == "triton is not installed"


def test_asking_imports_no_triton() -> None:
    code = (
        "import sys, torch; from mtptools.decoder import kernels; from mtptools.decoder.kernels import apart, layouts; "
        "said = kernels.unavailable(torch.device('cpu')); "
        "sys.exit('triton' in sys.modules or 'TRITON_INTERPRET=1' not in said)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_fingerprint() -> None:
    found = launch.fingerprint()
    assert found["interpreted"] is True
    assert found["tiles"]["Q4_K"].startswith("16 x ")
    assert found["tiles"].keys() == KINDS.keys()
