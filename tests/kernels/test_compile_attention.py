"""The programs of attention compile for GPUs that are not there, within the smallest one's registers and memory."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Looks, looks

CAPABILITIES = (80, 86, 89, 90, 100, 120)
SHARED = 99 * 1024  # of one program, on the smallest of these: sm_86, 89 and 120
REGISTERS = 128  # two programs of 8 warps on a multiprocessor
PARKED = 32  # bytes of the stack: the assembler parks a register or two, at times

LOOKS = [f"grouped:{arch}:bf16" for arch in CAPABILITIES] + [f"latent:{arch}:bf16" for arch in (80, 120)]
LOOKS += ["many:90:fp16", "grouped:90:fp32", "latent:120:fp32", "sink:80:bf16", "sink:90:bf16", "sink:120:fp32"]
JOBS = [*LOOKS, "join:80", "join:90", *(f"gated:{arch}" for arch in CAPABILITIES)]


@pytest.fixture(scope="module")
def compiled() -> Looks:
    return looks("compiling_attention", [*JOBS, "rows"])


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
    """One for slots up to the last, one for a list; one more joins with gates. triton left to itself makes more."""
    assert compiled["rows"]["as it is"] == [2, 3]
    assert all(n > 3 for n in compiled["rows"]["specialized"])
