"""The delta rule's programs compile for GPUs that are not there, within the smallest one's registers and memory."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Looks, looks

SHARED = 99 * 1024  # of one program, on the smallest of these: sm_86, 89 and 120
REGISTERS = 128  # 16 programs of one warp on a multiprocessor, and no value anywhere else

# The oldest capability or the newest; all of them, and other sizes: `compiling_delta`, by hand
JOBS = ["27B:80:remember", "27B:80:bring", "27B:120:gate"]


@pytest.fixture(scope="module")
def compiled() -> Looks:
    return looks("compiling_delta", [*JOBS, "rows"])


@pytest.mark.parametrize("job", JOBS)
def test_resources(compiled: Looks, job: str) -> None:
    found = compiled[job]
    assert found["stack"] + found["local"] == 0, "registers are spilled"
    assert found["reg"] <= REGISTERS
    assert found["shared"] <= SHARED


@pytest.mark.parametrize("job", JOBS)
def test_arithmetic(compiled: Looks, job: str) -> None:
    """Each operation is rounded, none is made one with another, and nothing that is small in a memory is made zero."""
    found = compiled[job]
    assert (found["mma"], found["fma"], found["atom"]) == ([], 0, 0)
    if job.endswith("remember"):  # triton 3.3's divisions and roots, which the others have, take subnormals for zeros
        assert found["ftz"] == 0


def test_rows_choose_no_program(compiled: Looks) -> None:
    """Nor kept states, slots, and where `at` stands; triton left to itself makes more."""
    assert compiled["rows"]["as it is"] == [1, 1, 1]
    assert min(compiled["rows"]["specialized"][:2]) > 1
