"""The programs of attention compile for GPUs that are not there, within the smallest one's registers and memory."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Looks, looks

SHARED = 99 * 1024  # of one program, on the smallest of these: sm_86, 89 and 120
REGISTERS = 128  # two programs of 8 warps on a multiprocessor
PARKED = 32  # bytes of the stack: the assembler parks a register or two, at times

# The oldest capability or the newest; all of them, and of shapes and types of caches: `compiling_attention`, by hand
LOOKS = ["grouped:120:bf16", "latent:80:fp32"]
JOBS = [*LOOKS, "gated:80"]


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
