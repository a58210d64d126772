"""Compiles the programs of heads for GPUs that need not be there, and prints what came out, one JSON object a line.

Arguments: LAYER:CAPABILITY:DTYPE …, of `LAYERS`; "write:CAPABILITY:DTYPE"; "rows" counts the programs that any number
of rows, slots and offsets is compiled to. To be run by itself, without the interpreter:

    python -m tests.kernels.compiling_heads 27B:80:bf16
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
from triton.runtime.driver import driver

from mtptools.decoder.kernels import heads, programs_heads
from tests.kernels.checks_heads import LAYERS as SMALL
from tests.kernels.checks_heads import Layer
from tests.kernels.compiling import NoGpu, facts
from tests.kernels.compiling_attention import DTYPES, compiled

LAYERS: Final = {
    "27B": Layer(24, 4, 256, 64, gates=24),
    "GLM-4.5-Air": Layer(96, 8, 128, 64),
    "MiMo": Layer(32, 8, 128, 128),  # without a norm
    "adjacent": Layer(3, 1, 80, 40, pairs="adjacent"),
}
LATENT: Final = 576


def placed(name: str, capability: int, dtype: str) -> Any:
    layer = LAYERS[name]
    total = layer.n_heads + 2 * layer.n_kv_heads + layer.gates
    constants = heads._placing(
        total, layer.head_dim, layer.n_heads, layer.n_kv_heads, layer.dim, layer.pairs, DTYPES[dtype]
    )
    pointers = dict.fromkeys(("fused", "norm", "table", "queries"), "*fp32")
    if name == "MiMo":
        del pointers["norm"]
        constants["norm"] = None
    arguments = {**pointers, "pages": "*i64", "positions": "*i64", "eps": "fp32", "scale": "fp32"}
    return compiled(programs_heads.place, capability, arguments, constants | heads._OPTIONS)


def written(capability: int, dtype: str) -> Any:
    pointers = {"rows": "*fp32", "pages": "*i64", "positions": "*i64"}
    return compiled(programs_heads.write, capability, pointers, heads._writing(LATENT, DTYPES[dtype]) | heads._OPTIONS)


def programs_for_rows(made: Callable[[Any], Any], counts: Sequence[int]) -> list[int]:
    """Launches of many numbers of rows, slots and offsets, up to the launch itself; how many programs of each kind?"""
    driver.set_active(NoGpu())
    both = {name: made(getattr(programs_heads, name)) for name in ("place", "write")}
    type(both["place"]).__getitem__ = lambda self, grid: partial(self.warmup, grid=grid)
    heads.programs = SimpleNamespace(**both)
    layer = SMALL["partial"]
    cache = layer.cache(torch.bfloat16, 1100)
    for rows in counts:
        fused = layer.fused(rows)
        for first, offset, capacity in ((0, 0, 64), (1, 1, 1024), (16, 16, 1000), (1000, -5, 1152)):
            slots = torch.arange(first - 1, first + rows)
            heads.place(
                *(fused, None, torch.ones(2, capacity, layer.dim // 2), cache.pages[first % 2 :], slots[1:]),
                offset=offset,
                eps=1e-6,
                scale=1.0,
                n_heads=layer.n_heads,
                n_kv_heads=layer.n_kv_heads,
                dim=layer.dim,
                pairs=layer.pairs,
                dtype=cache.dtype,
            )
            wide = torch.ones(rows, 1 + first % 3, 80)[:, :1, :64]
            heads.write(wide, cache.pages[first % 2 :], slots[1:], cache.dtype)
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
            capability, dtype = int(how[0]), how[1]
            found = facts(written(capability, dtype) if name == "write" else placed(name, capability, dtype))
        sys.stdout.write(json.dumps({"job": job, "triton": triton.__version__, **found}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
