"""The programs of heads compile for GPUs that are not there, to multiplications and sums that are rounded singly."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Looks, looks

# The oldest capability or the newest; all of them: `compiling_heads`, by hand
JOBS = ["27B:120:bf16", "MiMo:80:fp32", "adjacent:90:fp16", "write:80:fp16"]


@pytest.fixture(scope="module")
def compiled() -> Looks:
    return looks("compiling_heads", [*JOBS, "rows"])


@pytest.mark.parametrize("job", JOBS)
def test_resources(compiled: Looks, job: str) -> None:
    found = compiled[job]
    assert found["fma"] == 0, "a turn would have other bits than torch's"
    assert found["stack"] + found["local"] == 0, "registers are spilled"
    assert found["reg"] <= 96
    assert found["shared"] == 0, "a program is one warp"
    assert found["ftz"] <= 2  # triton 3.3's root and division of a norm, whose numbers are not subnormal
    assert found["atom"] == 0


def test_rows_choose_no_program(compiled: Looks) -> None:
    """Nor do slots, offsets, the table's size, or where positions lie; triton left to itself makes more."""
    assert compiled["rows"]["as it is"] == [1, 1]
    assert all(n > 1 for n in compiled["rows"]["specialized"])
