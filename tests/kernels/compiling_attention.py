"""Compiles the programs of attention for GPUs that need not be there, and prints what came out, one JSON object a line.

Arguments: SHAPE:CAPABILITY:DTYPE …, of `SHAPES`; "join:CAPABILITY" with a sink, "gated:CAPABILITY" with a gate; "rows"
counts the programs that any number of rows and keys is compiled to. To be run by itself, without the interpreter:

    python -m tests.kernels.compiling_attention latent:80:bf16
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from mtptools.decoder.kernels import attention, programs_attention
from tests.kernels.checks_attention import Shape
from tests.kernels.compiling import NoGpu, facts

SHAPES: Final = {
    "grouped": Shape(4, 24, 256, 256),  # of a 27B
    "many": Shape(8, 96, 128, 128),  # of GLM-4.5-Air
    "latent": Shape(1, 128, 576, 512, shared=True),  # of DeepSeek-V3
    "sink": Shape(1, 64, 512, 512, shared=True),  # of DeepSeek-V4
}
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FLOATS: Final = dict.fromkeys(("queries", "peaks", "totals", "mixed"), "*fp32")


def compiled(fn: Any, capability: int, pointers: dict[str, str], constants: dict[str, Any]) -> Any:
    names = ("num_warps", "num_stages", "enable_fp_fusion")
    options = {name: constants.pop(name) for name in names if name in constants}
    signature = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in fn.arg_names}
    anywhere = {parameter.name for parameter in fn.params if parameter.do_not_specialize}
    anywhere |= {name for name, kind in pointers.items() if not kind.startswith("*")}
    attrs = {(fn.arg_names.index(name),): [["tt.divisibility", 16]] for name in pointers if name not in anywhere}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def look(name: str, capability: int, dtype: str) -> Any:
    shape = SHAPES[name]
    constants = attention._constants(shape.cache(DTYPES[dtype]), shape.heads)
    del constants["programs"]
    sight, other = ("seen", "last") if name == "sink" else ("last", "seen")
    pointers = FLOATS | {"pages": "*i64", sight: {"seen": "*u8", "last": "*i64"}[sight]}
    return compiled(programs_attention.look, capability, pointers, constants | {other: None})


def join(name: str, capability: int) -> Any:
    shape = SHAPES["sink" if name == "join" else "grouped"]
    pointers = dict.fromkeys(("peaks", "totals", "mixed", "out"), "*fp32")
    pointers |= {"sinks": "*fp32"} if name == "join" else {"last": "*i64", "gate": "*fp32"}
    constants = attention._joining(shape.heads, shape.value_dim)
    constants |= {other: None for other in ("sinks", "last", "gate") if other not in pointers}
    return compiled(programs_attention.join, capability, pointers, constants)


def programs_for_rows(made: Callable[[Any], Any], counts: Sequence[int]) -> list[int]:
    """Launches of many numbers of rows, keys and segments, up to the launch itself; how many programs of each kind?"""
    driver.set_active(NoGpu())
    both = {name: made(getattr(programs_attention, name)) for name in ("look", "join")}
    type(both["look"]).__getitem__ = lambda self, grid: partial(self.warmup, grid=grid)
    attention.programs = SimpleNamespace(HEADS=programs_attention.HEADS, **both)
    shape = Shape(1, 2, 16, 16, shared=True)
    cache = shape.cache(torch.bfloat16)
    cache.append(torch.ones(1100, 1, 16))
    for rows in counts:
        queries = torch.ones(rows, 2, 16)
        for last in (0, 15, 63, 64, 511, 512, 1099):
            attention.attend(queries, cache, [last] * rows)
            ends, gate = torch.full((rows + 1,), last)[1:], torch.ones(rows, 2 * last + 5, 17)[:, 3:5, 1:]
            attention.attend(queries, cache, ends, until=last + rows, gate=gate)
        for first, chunks in ((0, 1), (1, 2), (7, 3), (16, 1)):
            seen = torch.ones(rows, chunks * 64, dtype=torch.bool)
            attention.attend_sink(queries, torch.ones(2), [(cache, first, seen), (cache, 0, seen)])
    return [len(fn.device_caches[0][0]) for fn in both.values()]


def main() -> None:
    for job in sys.argv[1:]:
        name, *how = job.split(":")
        if name == "rows":
            found: dict[str, Any] = {
                "as it is": programs_for_rows(lambda fn: fn, (1, 2, 5, 15, 16, 17, 33)),
                "specialized": programs_for_rows(lambda fn: triton.jit(fn.fn), (1,)),
            }
        else:
            program = look(name, int(how[0]), how[1]) if name in SHAPES else join(name, int(how[0]))
            found = facts(program)
        sys.stdout.write(json.dumps({"job": job, "triton": triton.__version__, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
