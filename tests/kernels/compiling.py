"""Compiles programs for GPUs that need not be there, and prints what came out, one JSON object a line.

Arguments: KIND:CAPABILITY:PROGRAM:DTYPE …, PROGRAM being product, grouped, each or values; or loop: what stands in a
product's loop. "all" stands for every kind. "rows" counts the programs that products of different numbers of rows are
compiled to. To be run by itself, without the interpreter:

    python -m tests.kernels.compiling all:80:product:bf16
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from mtptools.decoder.kernels import launch, programs
from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.kernels.table import TILES
from tests.kernels import machine_code
from tests.kernels.samples import sample

K = 5120
"""Of a 27B. Of fewer turns the assembler may make no loop."""
NAMES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
}
TYPES = {"fp32": tl.float32, "bf16": tl.bfloat16, "fp16": tl.float16}


def compiled(kind: str, capability: int, program: str, dtype: str) -> Any:
    """dtype  "fused": float32, with multiply and add made one where triton can"""
    slab = sample(kind, 48, K)[0]
    planes, tile = launch._planes(slab), TILES[kind]
    constants = {**launch._constants(slab), "block_n": tile.block_n}
    pointers = {"out": "*fp32"}
    fn = programs.values
    if program != "values":
        fn = programs.product
        constants |= {
            "steps": tile.steps(KINDS[kind].step, K, wide=dtype == "fp32"),
            "dtype": TYPES[dtype],
            "alone": program == "each",
        }
        pointers["x"] = "*fp32"
        if program != "product":
            pointers["experts"] = "*i32"
        else:
            constants["experts"] = None
    known = {**pointers, "planes": tuple(NAMES[plane.dtype] for plane in planes)}
    signature = {name: known.get(name, "constexpr" if name in constants else "i32") for name in fn.arg_names}
    paths = [(fn.arg_names.index(name),) for name in pointers]
    paths += [(fn.arg_names.index("planes"), i) for i in range(len(planes))]
    attrs = {path: [["tt.divisibility", 16]] for path in paths}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants, attrs=attrs)
    options = launch._options(tile) | {"enable_fp_fusion": dtype == "fused"}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def facts(program: Any) -> dict[str, Any]:
    """Counts of what stands in the PTX, and what the assembler used."""
    ptx = program.asm["ptx"]
    mma = sorted({word for line in ptx.splitlines() for word in line.split() if "mma" in word})
    return {
        "mma": mma,
        "mmas": len(re.findall(r"\bmma\.sync", ptx)),
        "fma": len(re.findall(r"\bfma\.rn\.f32", ptx)),
        "ftz": len(re.findall(r"\.ftz", ptx)),
        "atom": len(re.findall(r"\b(atom|red)\.", ptx)),
        "shared": program.metadata.shared,
        **used(program.asm["cubin"]),
    }


def used(cubin: bytes) -> dict[str, int]:
    """Registers, and bytes of the stack, where spilled ones go."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return {name.lower(): int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}


def loop(kind: str, capability: int, dtype: str) -> list[machine_code.Instruction]:
    return machine_code.loop(compiled(kind, capability, "product", dtype).asm["cubin"])


class NoGpu:
    """What triton asks of a driver up to the launch."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def programs_for_rows(product: Any) -> int:
    """Launches products of many numbers of rows, up to the launch itself; how many programs were compiled for them?"""
    driver.set_active(NoGpu())
    type(product).__getitem__ = lambda self, grid: partial(self.warmup, grid=grid)
    launch.programs = SimpleNamespace(product=product)
    slab = sample("Q8_0", 48, 96)[0]
    for rows in (1, 2, 4, 5, 15, 16, 17, 32, 33, 48):
        for columns, at in ((48, 0), (64, 16), (49, 1)):
            launch.product(torch.ones(rows, 96), slab, torch.bfloat16, torch.empty(rows, columns), at)
    return len(product.device_caches[0][0])


def main() -> None:
    for job in sys.argv[1:]:
        if job == "rows":
            found = {
                "as it is": programs_for_rows(programs.product),
                "specialized": programs_for_rows(triton.jit(programs.product.fn)),
            }
            sys.stdout.write(json.dumps({"job": job, **found}) + "\n")
            continue
        kinds, capability, program, dtype = job.split(":")
        for kind in KINDS if kinds == "all" else [kinds]:
            if program == "loop":
                found = machine_code.classes(loop(kind, int(capability), dtype))
            else:
                found = facts(compiled(kind, int(capability), program, dtype))
            name = ":".join((kind, capability, program, dtype))
            sys.stdout.write(json.dumps({"job": name, "triton": triton.__version__, **found}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
