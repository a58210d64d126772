"""The machine code of a compiled product: its loop, what stands in it, and how long one warp takes for it.

NVIDIA documents neither the code nor its fields of control. These are the places that Jia, Maggioni, Staiger and
Scarpazza found (Dissecting the NVIDIA Volta GPU architecture via microbenchmarking, 2018), which hold up to 9.0: cycles
to wait before the next instruction, a barrier that is set when a result is there, barriers to wait for.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import triton

TOOL: Final = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"

CLASSES: Final = {
    "mma": r"[HI]MMA",
    "copy": r"LDGSTS|LDGDEPBAR|DEPBAR|CCTL",
    "far": r"LDG|STG|LDL|STL",
    "shared": r"LDS|STS",
    "barrier": r"BAR|WARPSYNC",
    "converted": r"I2F\.|F2F\.|F2I\.|I2F$|F2F$|F2I$",
    "packed": r"F2FP|I2FP",
    "float": r"F(ADD|MUL|FMA)|H(ADD|MUL|FMA)2",
    "branch": r"BRA|CALL|RET|EXIT|BSSY|BSYNC|NOP|YIELD",
    "product": r"IMAD",
}
"""Names begin so. "copy": from global to shared memory, under way beside the rest; "far": a wait for global memory.
What is left is "integer": logic, shifts, permutations, sums, comparisons, choices, moves.
"""

LATENCY: Final = {"shared": 30, "converted": 22, "mma": 34}
"""Cycles until a result is there, of what sets a barrier; of others 20. Global memory's: see `cycles`."""

SOURCES: Final = 15
"""Cycles until an instruction that sets a barrier has read its operands."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """stall  cycles before the next one;  done, read  barriers set when it is done, and has read, 7: none
    waits  bits of barriers waited for
    """

    name: str
    text: str
    stall: int
    done: int
    read: int
    waits: int

    @property
    def kind(self) -> str:
        return next((kind for kind, begins in CLASSES.items() if re.match(begins, self.name)), "integer")


def loop(cubin: bytes) -> list[Instruction]:
    """A turn of a product's loop: from a label to the jump back to it. Of a short one, which the assembler may
    have laid out turn after turn, the whole program: it has as many matrix instructions as make it up."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([TOOL, "-c", "-hex", file.name], capture_output=True, text=True, check=True).stdout
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    best = range(0)
    for label, text, control in re.findall(
        r"^(\.L_\w+):$|/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;\s+/\* 0x[0-9a-f]{16} \*/\s+/\* (0x[0-9a-f]{16}) \*/", said, re.M
    ):
        if label:
            labels[label] = len(found)
            continue
        found.append(_instruction(text, int(control, 16) >> 41))
        target = re.search(r"BRA.*\((\.L_\w+)\)", text)
        if target and target[1] in labels and len(found) - labels[target[1]] > len(best):
            best = range(labels[target[1]], len(found))
    body = [found[i] for i in best]
    return body if any(one.kind == "mma" for one in body) else found


def _instruction(text: str, control: int) -> Instruction:
    name = re.sub(r"^@!?U?P\w+\s+", "", text).split()[0]
    return Instruction(name, text, max(1, control & 15), control >> 5 & 7, control >> 8 & 7, control >> 11 & 63)


def classes(body: Sequence[Instruction]) -> dict[str, int]:
    counts = Counter(one.kind for one in body)
    return {kind: counts[kind] for kind in (*CLASSES, "integer") if counts[kind]}


def cycles(body: Sequence[Instruction], far: int) -> int:
    """What one warp takes for a turn of the loop where no other is on its scheduler and all copies have come.

    far  cycles that a load from global memory takes
    """
    latency = LATENCY | {"far": far}
    now, ends = 0, []
    free = [0] * 8
    for _ in range(4):  # turns: the first ones find barriers that are not set
        for one in body:
            now = max([now, *(free[i] for i in range(6) if one.waits >> i & 1)])
            free[one.done] = max(free[one.done], now + latency.get(one.kind, 20))
            free[one.read] = max(free[one.read], now + SOURCES)
            free[7] = 0
            now += one.stall
        ends.append(now)
    return ends[-1] - ends[-2]
