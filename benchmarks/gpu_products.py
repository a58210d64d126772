"""Single products: bytes a second by each kernel, against the device's own copy and cuBLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from gpu_clock import Times, release, repeated, take_turns
from gpu_models import config_of, shapes_of, slab
from torch import Tensor

from mtptools.decoder.kernels.layouts import KINDS, Slab
from mtptools.decoder.resident import kernels

__all__ = ["KINDS_OF_USE", "Bench", "bandwidth", "products"]

KINDS_OF_USE = (
    *("Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "IQ4_XS", "MXFP4", "F8_BLOCK", "MLX_4", "MLX_8"),
    *("BF16", "F16", "F32"),
)
ROWS = (1, 4, 16)
CALLS = 12
COPIES = 48


@dataclass(frozen=True)
class Bench:
    """What all parts are told.

    toy     sizes for a machine without a GPU
    failed  what could not be measured
    """

    device: torch.device
    rounds: int
    toy: bool
    quick: bool
    graphs: bool
    kinds: tuple[str, ...]
    models: tuple[str, ...]
    failed: list[str] = field(default_factory=list)

    @property
    def trunk(self) -> str:
        """The type of whole models. The interpreter is quickest with floats."""
        return "BF16" if self.toy else "Q4_K"

    def turns(self, arms: dict[str, Callable[[], float]], most: int = 1 << 30) -> dict[str, Times]:
        return take_turns(arms, min(self.rounds, most), warm=not self.toy)


def bandwidth(bench: Bench) -> Times:
    """Seconds that the device takes to read a byte and to write one, of a copy of 1 GiB (toy: 1 MiB)."""
    nbytes = 1 << (20 if bench.toy else 30)
    source = torch.zeros(nbytes, dtype=torch.uint8, device=bench.device)
    to = torch.empty_like(source)
    arm = repeated([lambda: to.copy_(source)] * 4, bench.device, graph=bench.graphs)
    found = bench.turns({"copy": arm})["copy"]
    return Times(tuple(seconds / nbytes for seconds in found.seconds))


def _copies(nbytes: int, bench: Bench) -> int:
    """Of a matrix, so that none is found in the cache that lies over the device's memory."""
    if bench.device.type != "cuda":
        return 1
    cache = torch.cuda.get_device_properties(bench.device).L2_cache_size
    return max(2, min(COPIES, -(-3 * cache // nbytes)))


def _repeat(calls: list[Callable[[], Tensor]], bench: Bench) -> list[Callable[[], Tensor]]:
    return calls if bench.device.type != "cuda" else calls * max(1, -(-CALLS // len(calls)))


@dataclass(frozen=True)
class _Product:
    """n, k   of the matrix;  stack, used  matrices and how many of them a row meets, 0 of an ordinary one"""

    what: str
    n: int
    k: int
    stack: int
    used: int
    dtype: torch.dtype

    def ours(self, kind: str, rows: int, bench: Bench) -> tuple[Callable[[], float], int]:
        """(arm, packed bytes that a call reads)"""
        first = slab(kind, self.n * max(self.stack, 1), self.k, bench.device)
        count = _copies(first.nbytes // max(self.stack, 1) * max(self.used, 1), bench)
        # of a stack other experts are met by every call
        slabs = [first, *(_copied(first) for _ in range(0 if self.stack else count - 1))]
        calls = [self._call(slabs[number % len(slabs)], rows, number, bench) for number in range(count)]
        read = first.nbytes if not self.stack else first.nbytes // self.stack * min(self.stack, rows * self.used)
        return repeated(_repeat(calls, bench), bench.device, graph=bench.graphs), read

    def _call(self, one: Slab, rows: int, number: int, bench: Bench) -> Callable[[], Tensor]:
        launch = kernels()
        if not self.stack:
            x = torch.randn((rows, self.k), device=bench.device)
            return lambda: launch.product(x, one, self.dtype)
        met = rows * self.used  # each row its own, as few rows do
        x = torch.randn((rows, self.k), device=bench.device)
        experts = (torch.arange(met, dtype=torch.int32, device=bench.device) + number * met) % self.stack
        out = x.new_empty((met, self.n))
        return lambda: launch.each(x, one, self.n, experts, self.dtype, out)

    def theirs(self, rows: int, bench: Bench) -> Callable[[], float]:
        """cuBLAS on bfloat16 (of logits: float32) values; of experts one that all rows meet, times their number."""
        kind = torch.bfloat16 if self.dtype != torch.float32 else torch.float32
        nbytes = self.n * self.k * kind.itemsize
        matrices = [torch.randn((self.n, self.k), device=bench.device).to(kind) for _ in range(_copies(nbytes, bench))]
        x = torch.randn((rows, self.k), device=bench.device).to(kind)
        calls: list[Callable[[], Tensor]] = [lambda w=w: torch.mm(x, w.T) for w in matrices]  # type: ignore[misc]
        return repeated(_repeat(calls, bench), bench.device, graph=bench.graphs)


def _copied(one: Slab) -> Slab:
    return Slab(one.kind, tuple(plane.clone() for plane in one.planes), one.shape, one.group)


def _products(bench: Bench, name: str) -> Iterator[_Product]:
    config = config_of(name, toy=bench.toy)
    used = config["text_config"].get("num_experts_per_tok", 0)
    for what, shape in shapes_of(config):
        dtype = torch.float32 if what == "output" else torch.bfloat16
        stack = shape[0] if len(shape) == 3 else 0
        yield _Product(what, shape[-2], shape[-1], stack, used if stack else 0, dtype)


def products(bench: Bench) -> None:
    """Prints a table for each model's shapes."""
    copy = bandwidth(bench)
    print(f"\n## Products\n\ncopy: {2 / copy.middle / 1e9:.4g} GB/s read and written (± {copy.spread:.0%})")
    for name in bench.models:
        print(f"\n### Shapes of {name}\n")
        print("| product | rows | kind | a call | GB/s of packed bytes | of copy | cuBLAS | of cuBLAS's time |")
        print("|---|---|---|---|---|---|---|---|")
        shapes = list(_products(bench, name))
        if bench.quick:  # a mixer's, an expert's or a feed-forward part's, and the output
            shapes = [shapes[0], shapes[2], shapes[-1]]
        for one in shapes:
            for rows in ROWS[:1] if bench.quick else ROWS:
                _rows(one, rows, bench, copy)


def _rows(one: _Product, rows: int, bench: Bench, copy: Times) -> None:
    """Every kind at one shape, in turns with cuBLAS, a kind at a time: no more than two sets of copies are held."""
    kinds = bench.kinds if one.dtype != torch.float32 else tuple(k for k in bench.kinds if k in OUTPUT_KINDS)
    shape = f"{one.what} {one.n} x {one.k}" + (f", {one.used} of {one.stack}" if one.stack else "")
    for kind in kinds:
        if one.k % _block(kind):
            continue
        try:
            print(f"| {shape} | {rows} | {kind} | {_row(one, kind, rows, bench, copy)} |", flush=True)
        except Exception as error:  # of one kind, whose program a card may have no room for
            bench.failed.append(f"{kind} at {shape}")
            print(f"| {shape} | {rows} | {kind} | failed: {' '.join(str(error).split())[:160]} | | | | |", flush=True)


def _row(one: _Product, kind: str, rows: int, bench: Bench, copy: Times) -> str:
    release(bench.device)
    ours, read = one.ours(kind, rows, bench)
    theirs = one.theirs(rows, bench)
    found = bench.turns({"ours": ours, "theirs": theirs})
    speed = read / found["ours"].middle
    many = min(one.stack, rows * one.used) if one.stack else 1
    share, ratio = speed * copy.middle / 2, found["ours"].middle / found["theirs"].middle / many
    times = f" x {many}" if many > 1 else ""
    return f"{found['ours']} | {speed / 1e9:.4g} | {share:.0%} | {found['theirs']}{times} | {ratio:.2f}"


OUTPUT_KINDS = ("Q4_K", "Q6_K", "Q8_0", "BF16")
"""Types that output matrices come in."""


def _block(kind: str) -> int:
    from mtptools.codecs import CODECS

    return CODECS[kind].block_values if KINDS[kind].fields else max(KINDS[kind].step, 64)
