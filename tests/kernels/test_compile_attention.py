"""The programs of attention compile for GPUs that are not there, within the smallest one's registers and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CAPABILITIES = (80, 86, 89, 90, 100, 120)
SHARED = 99 * 1024  # of one program, on the smallest of these: sm_86, 89 and 120
REGISTERS = 128  # two programs of 8 warps on a multiprocessor
PARKED = 32  # bytes of the stack: the assembler parks a register or two, at times

LOOKS = [f"grouped:{arch}:bf16" for arch in CAPABILITIES] + [f"latent:{arch}:bf16" for arch in (80, 120)]
LOOKS += ["many:90:fp16", "grouped:90:fp32", "latent:120:fp32", "sink:80:bf16", "sink:90:bf16", "sink:120:fp32"]
JOBS = [*LOOKS, "join:80", "join:90"]

Looks = dict[str, dict[str, Any]]


def run() -> str:
    """`compiling_attention` with every job: in a process of its own, where triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.kernels.compiling_attention", *JOBS, "rows"],
            env=environment | {"TRITON_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def compiled() -> Looks:
    """What it says of each job."""
    return {found["job"]: found for found in map(json.loads, run().splitlines())}


@pytest.mark.parametrize("job", JOBS)
def test_resources(compiled: Looks, job: str) -> None:
    found = compiled[job]
    assert found["stack"] + found["local"] <= PARKED, "registers are spilled"
    assert found["reg"] <= REGISTERS
    assert found["shared"] <= SHARED
    assert found["atom"] == 0, "sums would be made in any order"


@pytest.mark.parametrize("job", LOOKS)
def test_float32_is_never_tf32(compiled: Looks, job: str) -> None:
    assert compiled[job]["mma"] == []
    assert compiled[job]["fma"] > 0


def test_rows_and_keys_choose_no_program(compiled: Looks) -> None:
    """One for what rows see up to a slot, one for what they see by a list; triton left to itself makes more."""
    assert compiled["rows"]["as it is"] == [2, 2]
    assert all(n > 2 for n in compiled["rows"]["specialized"])
