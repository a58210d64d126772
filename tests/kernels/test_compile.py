"""Programs compile for GPUs that are not there: to the instructions that are meant, and to no others."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import Looks, looks
from tests.kernels.machine_code import TOOL

HOPPER = 90
OTHERS = (80, 120)
MAIN = ("BF16", "Q4_K")  # all of them: `compiling`, by hand
SHARED = 99 * 1024  # of one program, on the smallest of these: sm_86, 89 and 120
PARKED = 32  # bytes of the stack: the assembler parks a register or two, at times

PRODUCTS = [f"{kind}:{HOPPER}:product:bf16" for kind in MAIN]
PRODUCTS += [f"{kind}:{arch}:product:bf16" for kind in ("Q4_K",) for arch in OTHERS]
PRODUCTS += [f"Q4_K:{HOPPER}:grouped:bf16", f"Q4_K:{HOPPER}:each:bf16"]
WIDE = [f"Q4_K:{HOPPER}:product:fp32"]
VALUES = [f"{kind}:{HOPPER}:values:fp32" for kind in ("Q4_K", "Q5_1")]

FUSED = f"Q5_1:{HOPPER}:values:fused"

FMAS = {"Q4_K": 1}
"""Multiply-adds that are asked for, for each weight: of exact products."""

LOOPS = {
    "Q4_K": 8.8,
    "BF16": 3.8,
}
"""Instructions of a thread for each of its weights, at most: 5 % more than were counted with triton 3.7."""

INSTRUCTION = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


@pytest.fixture(scope="module")
def compiled() -> Looks:
    loops = [f"{kind}:{HOPPER}:loop:bf16" for kind in LOOPS] if TOOL.exists() else []
    return looks("compiling", [*PRODUCTS, *WIDE, *VALUES, FUSED, *loops, "rows"])


@pytest.mark.parametrize("job", PRODUCTS)
def test_matrix_instructions(compiled: Looks, job: str) -> None:
    """One instruction on every architecture: not Hopper's, whose sums may be made in another order."""
    kind = job.split(":")[0]
    assert compiled[job]["mma"] == [INSTRUCTION]
    weights = 4 * compiled[job]["mmas"]  # of a thread: an instruction has 16 x 8 weights for 32 of them
    assert compiled[job]["fma"] == FMAS.get(kind, 0) * weights, "dequantization rounds products and sums one by one"


@pytest.mark.skipif(not TOOL.exists(), reason="this triton brings no nvdisasm along")
@pytest.mark.parametrize("kind", LOOPS)
def test_the_loop(compiled: Looks, kind: str) -> None:
    """What limits speed is pinned: instructions for a weight; and what stops a warp in every turn, a load that was not
    begun before, values that go from one layout to another through shared memory."""
    found = compiled[f"{kind}:{HOPPER}:loop:bf16"]
    counts = {name: count for name, count in found.items() if isinstance(count, int)}
    assert sum(counts.values()) / (4 * found["mma"]) <= LOOPS[kind]
    assert found["barrier"] == 2
    assert "far" not in found


@pytest.mark.parametrize("job", WIDE)
def test_float32_is_never_tf32(compiled: Looks, job: str) -> None:
    assert compiled[job]["mma"] == []
    assert compiled[job]["fma"] > 0


@pytest.mark.parametrize("job", VALUES)
def test_nothing_is_fused(compiled: Looks, job: str) -> None:
    assert (
        compiled[job]["fma"] == FMAS.get(job.split(":")[0], 0) * 256 * 32 // 128
    )  # a program's values, by 128 threads


@pytest.mark.parametrize("job", [*PRODUCTS, *WIDE, *VALUES])
def test_resources(compiled: Looks, job: str) -> None:
    found = compiled[job]
    assert found["stack"] + found["local"] <= PARKED, "registers are spilled"
    assert found["shared"] <= SHARED
    assert found["ftz"] == 0, "subnormal scales would be zeros"
    assert found["atom"] == 0, "sums would be made in any order"


def test_fusing_is_seen(compiled: Looks) -> None:
    """With triton's own setting the count is not 0: it is the option that turns it off."""
    assert compiled[FUSED]["fma"] > 0


def test_rows_choose_no_program(compiled: Looks) -> None:
    """However many rows, and wherever they go: one program. triton left to itself makes several."""
    assert compiled["rows"]["as it is"] == 1
    assert compiled["rows"]["specialized"] > 1
