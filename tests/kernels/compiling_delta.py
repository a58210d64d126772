"""Compiles the programs of the delta rule for GPUs that need not be there, and prints what came out, as JSON lines.

Arguments: SHAPE:CAPABILITY:PROGRAM …, of `checks_delta.REAL` and of `PROGRAMS`; "rows" counts the programs that passes
of any number of rows are compiled to. They are launched as they would be, up to the launch itself. To be run by itself,
without the interpreter:

    python -m tests.kernels.compiling_delta 27B:90:remember
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from mtptools.decoder.kernels import delta, programs_delta
from mtptools.decoder.ring import Ring
from tests.kernels.checks_delta import REAL, Shape, Text
from tests.kernels.compiling import NoGpu, facts

PROGRAMS: Final = ("bring", "remember", "gate")


class Missing(NoGpu):
    """A device of some capability, by whose number triton keeps its programs apart."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)


def compiled(program: str, shape: Shape, capability: int) -> Any:
    """As a pass of three rows compiles it."""
    fn = getattr(programs_delta, program)
    _use({name: fn if name == program else _NoProgram() for name in PROGRAMS}, capability)
    text = Text(shape, 3)
    text.pass_of(text.ring(4, 0), 0, 3, 2)
    (made,) = fn.device_caches[capability][0].values()
    return made


def programs_for_rows(fns: dict[str, Any], counts: Sequence[int]) -> list[int]:
    """Passes of these numbers of rows, of kept states and slots, from `at` at several addresses; how many programs?"""
    _use(fns, 90)
    text = Text(Shape(1, 2, 16, 16), 33)
    for rows in counts:
        for kept, slots in ((0, 1), (1, 2), (min(rows, 15), 16)):
            ring = text.ring(slots, 0)
            for at in torch.zeros(3, dtype=torch.int64).split(1):
                for start in {0, 33 - rows}:
                    text.pass_of(Ring(ring.conv, ring.memory, at), start, rows, kept)
    return [len(fn.device_caches[90][0]) for fn in fns.values()]


def _use(fns: dict[str, Any], capability: int) -> None:
    driver.set_active(Missing(capability))
    type(programs_delta.gate).__getitem__ = lambda self, grid: partial(self.warmup, grid=grid)
    delta.programs = SimpleNamespace(**fns)
    for fn in fns.values():
        if not isinstance(fn, _NoProgram):
            fn.device_caches.clear()


class _NoProgram:
    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments, **options: None


def main() -> None:
    for job in sys.argv[1:]:
        if job == "rows":
            ours = {name: getattr(programs_delta, name) for name in PROGRAMS}
            others = {name: triton.jit(fn.fn) for name, fn in ours.items()}
            found: dict[str, Any] = {
                "as it is": programs_for_rows(ours, (1, 2, 5, 15, 16, 17, 33)),
                "specialized": programs_for_rows(others, (1,)),
            }
        else:
            shape, capability, program = job.split(":")
            found = facts(compiled(program, REAL[shape], int(capability)))
        sys.stdout.write(json.dumps({"job": job, "triton": triton.__version__, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
