"""The programs of rows compile for GPUs that are not there, to arithmetic that is rounded as IEEE has it."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Looks, looks

SHARED = 99 * 1024  # of one program, on the smallest of these: sm_86, 89 and 120
REGISTERS = {"norm of a sum": 64, "wide norm": 128, "groups": 128, "many": 255}  # 512 threads; one warp of 1024 experts

NAMES = ("norm", "wide norm", "cut gate", "softmax", "softplus", "many", "mix")
JOBS = ["norm of a sum:80", "groups:120", *(f"{name}:90" for name in NAMES)]  # all of them: `compiling_rows`, by hand


@pytest.fixture(scope="module")
def compiled() -> Looks:
    return looks("compiling_rows", [*JOBS, "inexact", "rows"])


@pytest.mark.parametrize("job", JOBS)
def test_resources(compiled: Looks, job: str) -> None:
    found = compiled[job]
    assert found["stack"] + found["local"] == 0, "registers are spilled"
    assert found["reg"] <= REGISTERS.get(job.split(":")[0], 80)
    assert found["shared"] <= SHARED
    assert found["atom"] == 0, "sums would be made in any order"


@pytest.mark.parametrize("job", JOBS)
def test_each_operation_is_rounded(compiled: Looks, job: str) -> None:
    found = compiled[job]
    assert found["fma"] == 0, "torch rounds products and sums one by one"
    assert found["mma"] == []
    assert found["approximate"] == []
    assert found["flushed"] == 0  # triton 3.3 loses them where it divides: what stands there is none


def test_inexact_is_seen(compiled: Looks) -> None:
    assert len(compiled["inexact"]["approximate"]) == 2


def test_rows_choose_no_program(compiled: Looks) -> None:
    """Nor do addresses and distances: one, and of a norm one for each form. triton left to itself makes several."""
    assert compiled["rows"]["as it is"] == {"norm": 3, "gate": 1, "route": 1, "mix": 1}
    assert all(n > compiled["rows"]["as it is"][name] for name, n in compiled["rows"]["specialized"].items())
