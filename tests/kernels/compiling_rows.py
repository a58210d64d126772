"""Compiles the programs of rows for GPUs that need not be there, and prints what came out, one JSON object a line.

Arguments: NAME:CAPABILITY …, of `PROGRAMS`; "inexact" is one that is not to be had; "rows" counts the programs that
rows of any number, address and distance are compiled to. To be run by itself, without the interpreter:

    python -m tests.kernels.compiling_rows norm:80
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from mtptools.decoder.kernels import programs_rows, rows
from mtptools.decoder.settings import Routing
from tests.kernels.compiling import NoGpu, facts

QWEN: Final = Routing("softmax", 8)
PROGRAMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "norm": ("norm", {"y": None, **rows._normed_by(5120)}),  # of a 27B
    "head norm": ("norm", {"y": None, **rows._normed_by(256)}),
    "norm of a sum": ("norm", rows._normed_by(5120)),
    "wide norm": ("norm", rows._normed_by(16384)),
    "gate": ("gate", {"half": 17408, "limit": 0.0, **rows._singly()}),
    "cut gate": ("gate", {"half": 2048, "limit": 10.0, **rows._singly()}),
    "softmax": ("route", {"bias": None, **rows._routed_by(256, QWEN, True)}),  # of a 35B-A3B
    "groups": ("route", rows._routed_by(256, Routing("sigmoid", 8, 8, 4, scale=2.5), False)),  # of DeepSeek-V3
    "softplus": ("route", rows._routed_by(384, Routing("sqrtsoftplus", 6), False)),
    "many": ("route", {"bias": None, **rows._routed_by(1024, QWEN, True)}),
    "mix": ("mix", {"hidden": 2048, "used": 8, "switch": True, **rows._singly()}),
}
POINTERS: Final = dict.fromkeys(
    ("x", "y", "weight", "total", "out", "logits", "bias", "weights", "parts", "shared"), "*fp32"
)
SIGNATURE: Final = {**POINTERS, "experts": "*i32", "eps": "fp32"}


def compiled(name: str, capability: int) -> Any:
    """Nothing is known of addresses and numbers, as when they are launched."""
    fn_name, given = PROGRAMS[name]
    fn = getattr(programs_rows, fn_name)
    options = {key: value for key, value in given.items() if key not in fn.arg_names}
    constants = {key: value for key, value in given.items() if key in fn.arg_names}
    signature = {key: "constexpr" if key in constants else SIGNATURE.get(key, "i32") for key in fn.arg_names}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@triton.jit
def inexact(x):
    """What triton makes of a root and a quotient unless it is told."""
    tl.store(x, tl.sqrt(tl.load(x)) / tl.load(x + 1))


def said(program: Any) -> dict[str, Any]:
    """Beside the usual: divisions and roots not rounded as IEEE has it, sums and products that lose subnormals."""
    ptx = program.asm["ptx"]
    approximate = sorted(set(re.findall(r"\b(?:div|rcp|sqrt|rsqrt|lg2|tanh)\.(?:full|approx)\S*", ptx)))
    return {**facts(program), "approximate": approximate, "flushed": len(re.findall(r"\b(?:add|sub|mul)\S*\.ftz", ptx))}


def programs_for_rows(made: Callable[[Any], Any], counts: Sequence[int]) -> dict[str, int]:
    """Launches of many numbers of rows, at many addresses, up to the launch itself; how many programs of each?"""
    driver.set_active(NoGpu())
    every = {name: made(getattr(programs_rows, name)) for name in programs_rows.__all__}
    type(every["norm"]).__getitem__ = lambda self, grid: partial(self.warmup, grid=grid)
    rows.programs = SimpleNamespace(**every)
    for n in counts:
        for distance, at in ((64, 0), (80, 16), (81, 1)):
            x = torch.ones(n * distance + at)[at:].view(n, distance)[:, :32]
            rows.norm(x, x[0], 1e-6)
            rows.norm(x.view(n, 2, 16), torch.ones(2, 16), 1.0)
            rows.norm_sum(x, x.clone(), x[0], 1e-5)
            rows.gate(x)
            rows.route(x, Routing("softmax", 2), None, True)
            rows.mix(torch.ones(n * 64 + at)[at:].view(n, 2, 32), torch.ones(n, 3), x, True)
    return {name: len(fn.device_caches[0][0]) for name, fn in every.items()}


def main() -> None:
    for job in sys.argv[1:]:
        if job == "rows":
            found: dict[str, Any] = {
                "as it is": programs_for_rows(lambda fn: fn, (1, 2, 16, 17)),
                "specialized": programs_for_rows(lambda fn: triton.jit(fn.fn), (1,)),
            }
        elif job == "inexact":
            source = ASTSource(fn=inexact, signature={"x": "*fp32"}, constexprs={})
            found = said(triton.compile(source, target=GPUTarget("cuda", 90, 32)))
        else:
            name, capability = job.split(":")
            found = said(compiled(name, int(capability)))
        sys.stdout.write(json.dumps({"job": job, "triton": triton.__version__, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
