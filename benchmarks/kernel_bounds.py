"""What the products could reach on cards that are not here: a model, made of counts. Nothing is measured.

    python benchmarks/kernel_bounds.py [--kinds Q4_K,Q6_K | all] [--cards RTX_4090,H200] [--models 27B,35B-A3B]

Every kind's product is compiled for each card's architecture, and the loop of its machine code read. From what stands
in it, and from what is published of a card, follow upper bounds of the share of the memory's bandwidth, for one row:

    instructions  every scheduler issues one a cycle; of some kinds it takes more than one (`_cycles`). On that
                  multiprocessor which has most programs: of a matrix they are no multiple of the multiprocessors
    one warp      a warp waits for its own results: cycles of a turn where no other warp is on its scheduler
    latency       what is used was asked for (stages - 1) turns before, at most
    memory        none of these: 100 %

A bound is no promise: caches, clocks that fall, bandwidth that is never reached are not in it.

Sources. Results a cycle and multiprocessor: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions"
(float32 64 or 128; integer, logic, shifts 64; "all other type conversions" 16). Packing two floats, and integers made
floats by I2FP, are not in it: taken for 64, since the assembler puts them two cycles apart. Products of matrices:
tensor TFLOPS of the data sheets; of Hopper half, since its full rate takes other instructions. Multiprocessors, boost
clocks, bandwidth: data sheets. Latency of memory under load: assumed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Final

os.environ.pop("TRITON_INTERPRET", None)  # what is interpreted has no machine code
sys.path.insert(0, str(Path(__file__).parent.parent))

from mtptools.decoder.kernels.layouts import KINDS
from mtptools.decoder.kernels.table import TILES, Tile
from tests.kernels import compiling, machine_code
from tests.kernels.samples import sample

LATENCY: Final = 700e-9
"""Seconds from asking the memory to having it."""


@dataclass(frozen=True, slots=True)
class Card:
    """clock GHz;  bandwidth GB/s;  shared KB of a multiprocessor;  programs, warps  that it holds at most
    float32  results a cycle and multiprocessor;  tensor  bfloat16 multiply-adds, summed in float32, likewise
    """

    capability: int
    processors: int
    clock: float
    bandwidth: int
    shared: int
    programs: int
    warps: int
    float32: int
    tensor: int


CARDS: Final = {
    "RTX_3090": Card(86, 82, 1.695, 936, 100, 16, 48, 128, 256),
    "RTX_4090": Card(89, 128, 2.52, 1008, 100, 24, 48, 128, 256),
    "A100": Card(80, 108, 1.41, 2039, 164, 32, 64, 64, 1024),
    "H100": Card(90, 132, 1.83, 3350, 228, 32, 64, 128, 1024),
    "H200": Card(90, 132, 1.83, 4800, 228, 32, 64, 128, 1024),
}

KINDS_OF_USE: Final = "Q4_K,Q5_K,Q6_K,Q8_0,Q4_0,IQ4_XS,MXFP4,F8_BLOCK,MLX_4,MLX_8,BF16"

SHAPES: Final = {
    "27B": {
        "gate and up": (1, 34816, 5120),
        "down": (1, 5120, 17408),
        "mixer input": (1, 16480, 5120),
        "mixer output": (1, 5120, 6144),
    },
    "35B-A3B": {
        "experts' gate and up": (8, 1024, 2048),
        "experts' down": (8, 2048, 512),
        "mixer input": (1, 12352, 2048),
        "mixer output": (1, 2048, 4096),
    },
}
"""Matrices that a row meets, their rows and columns: `gpu_models.shapes_of`."""


@dataclass(frozen=True, slots=True)
class Program:
    """counts, alone  of a turn of a warp's loop: instructions by class, and cycles where no other is on its scheduler
    shared, registers  bytes of a program, and of a thread
    """

    counts: dict[str, int]
    alone: int
    shared: int
    registers: int

    @property
    def weights(self) -> int:
        """A thread's in a turn: a matrix instruction has 16 x 8 of them for 32 threads."""
        return 4 * self.counts["mma"]

    @property
    def columns(self) -> int:
        """Of a turn: a warp has eight rows."""
        return self.weights * 32 // 8


@dataclass(frozen=True, slots=True)
class Bound:
    share: float
    limit: str
    programs: float
    held: int


@cache
def program(kind: str, card: Card) -> Program:
    made = compiling.compiled(kind, card.capability, "product", "bf16")
    body = machine_code.loop(made.asm["cubin"])
    alone = machine_code.cycles(body, int(LATENCY * card.clock * 1e9))
    return Program(machine_code.classes(body), alone, made.metadata.shared, compiling.used(made.asm["cubin"])["reg"])


@cache
def bytes_of(kind: str) -> float:
    """Of a weight."""
    slab = sample(kind, 16, 512)[0]
    return slab.nbytes / (16 * 512)


def _cycles(one: Program, card: Card) -> int:
    """Of a scheduler, for a warp's turn: what it issues, or the slowest of its four kinds of unit."""
    counts = {name: one.counts.get(name, 0) for name in (*machine_code.CLASSES, "integer")}
    return max(
        sum(counts.values()),
        2 * (counts["integer"] + counts["packed"]),
        (128 // card.float32) * counts["float"] + 2 * counts["product"],
        8 * counts["converted"],
        4 * 2048 * counts["mma"] // card.tensor,
    )


def held(one: Program, tile: Tile, card: Card) -> int:
    """Programs that a multiprocessor holds: 1 KB of shared memory of each is the system's, registers go by eight."""
    registers = 32 * tile.warps * 8 * ceil(one.registers / 8)
    by_memory = card.shared * 1024 // (one.shared + 1024)
    return min(by_memory, 65536 // registers, card.programs, card.warps // tile.warps)


def bound(kind: str, card: Card, shape: tuple[int, int, int]) -> Bound:
    times, n, k = shape
    one, tile = program(kind, card), TILES[kind]
    room, programs = held(one, tile, card), times * ceil(n / tile.block_n)
    full, rest = divmod(programs, card.processors * room)
    runs = [(room, full), (ceil(rest / card.processors), 1 if rest else 0)]
    turns = k / one.columns / (card.clock * 1e9)
    seconds = {"memory": times * n * k * bytes_of(kind) / card.bandwidth / 1e9}
    ahead = LATENCY * card.clock * 1e9
    for limit in ("instructions", "one warp", "latency"):
        total = 0.0
        for programs_at_once, run in runs:
            issued = ceil(programs_at_once * tile.warps / 4) * _cycles(one, card)
            of = {"instructions": issued, "one warp": one.alone}
            of["latency"] = (max(of.values()) + ahead) / (tile.stages - 1)
            total += run * turns * of[limit]
        seconds[limit] = total
    worst = max(seconds, key=lambda limit: seconds[limit])
    return Bound(seconds["memory"] / seconds[worst], worst, programs / card.processors, room)


def counts(kinds: Sequence[str]) -> Iterator[str]:
    names = (*machine_code.CLASSES, "integer")
    yield "| kind | bytes | all | " + " | ".join(names) + " | registers | shared KB | cycles alone |"
    yield "|---" * (len(names) + 6) + "|"
    for kind in kinds:
        one = program(kind, CARDS["H100"])
        found = [f"{one.counts.get(name, 0) / one.weights:.2f}" for name in names]
        total = sum(one.counts.values()) / one.weights
        more = f"{one.registers} | {one.shared / 1024:.0f} | {one.alone / one.weights:.1f}"
        yield f"| {kind} | {bytes_of(kind):.3f} | {total:.2f} | " + " | ".join(found) + f" | {more} |"


def throughput(kinds: Sequence[str], cards: Sequence[str]) -> Iterator[str]:
    yield "| kind | " + " | ".join(cards) + " |"
    yield "|---" * (len(cards) + 1) + "|"
    for kind in kinds:
        row = []
        for card in (CARDS[name] for name in cards):
            one = program(kind, card)
            rate = card.processors * 4 * card.clock * 1e9 / _cycles(one, card) * one.weights * 32
            row.append(f"{rate * bytes_of(kind) / card.bandwidth / 1e9:.0%}")
        yield f"| {kind} | " + " | ".join(row) + " |"


def bounds(kinds: Sequence[str], cards: Sequence[str], model: str) -> Iterator[str]:
    yield "| kind | product | " + " | ".join(cards) + " |"
    yield "|---" * (len(cards) + 2) + "|"
    for kind in kinds:
        for what, shape in SHAPES[model].items():
            row = []
            for name in cards:
                found = bound(kind, CARDS[name], shape)
                row.append(f"{found.share:.0%} {found.limit}, {found.programs:.1f} of {found.held}")
            yield f"| {kind} | {what} {shape[1]} x {shape[2]} | " + " | ".join(row) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=KINDS_OF_USE)
    parser.add_argument("--cards", default=",".join(CARDS))
    parser.add_argument("--models", default=",".join(SHAPES))
    args = parser.parse_args()
    kinds = list(KINDS) if args.kinds == "all" else args.kinds.split(",")
    cards = args.cards.split(",")
    print("# Bounds of the products: a model, made of counts. Nothing here was measured on a card.")
    print("\n## Instructions of a thread for each of its weights, compiled for 9.0\n")
    for line in counts(kinds):
        print(line, flush=True)
    print("\n## Model: share of the bandwidth at which a card that is full of warps would make values\n")
    for line in throughput(kinds, cards):
        print(line, flush=True)
    for model in args.models.split(","):
        print(f"\n## Model: upper bounds for the {model}'s products, of one row\n")
        print("The limit; programs for each multiprocessor, and how many it holds at a time.\n")
        for line in bounds(kinds, cards, model):
            print(line, flush=True)


if __name__ == "__main__":
    main()
