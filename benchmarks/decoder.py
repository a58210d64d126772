"""What exactness costs: the decoder against plain PyTorch, per token, on the same model and machine.

    python benchmarks/decoder.py [--models qwen35,qwen35moe,0.8B] [--dtypes float32,bfloat16] [--threads 1] [--parts]

Arms: transformers (eager and sdpa attention) with its cache; this decoder with plain products (one `linear` for all
rows, `scaled_dot_product_attention` over one buffer: what exactness is given up for elsewhere); this decoder as it is.
All arms choose the largest logit; nothing is recorded. They take turns, a block of tokens each, in rotation: a busy
machine then hurts them alike. The first tokens of a block find another arm's weights in the caches and are not counted.
Beside wall time stands the process's CPU time (of all threads), which leaves out the turns of other processes: on a
machine that is shared, that is the ratio to trust. Waiting threads count in it unless OMP_WAIT_POLICY=passive is set.

`--parts` puts the plain form of one part after another into the exact decoder: the time saved is what that part costs.
0.8B has the shapes of Qwen3.5-0.8B-Base, random weights, and is made in memory.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import plain_products
import torch
from decoder_models import Pair, pair

KS = (1, 2, 3, 4)
PROMPT = 16


class Theirs:
    """transformers, token by token."""

    def __init__(self, model: torch.nn.Module, attention: str) -> None:
        self.model, self.attention = model, attention

    def start(self, ids: Sequence[int]) -> None:
        self.model.set_attn_implementation(self.attention)
        out = self.model(torch.tensor([ids]), use_cache=True)
        self.cache, self.next = out.past_key_values, out.logits[:, -1:].argmax(-1)

    @contextmanager
    def ready(self) -> Iterator[None]:
        self.model.set_attn_implementation(self.attention)
        yield

    def token(self) -> None:
        out = self.model(self.next, past_key_values=self.cache, use_cache=True)
        self.next = out.logits[:, -1:].argmax(-1)


class Ours:
    """The decoder, with the plain form of `parts`; a pass of `rows` rows, of which one is kept."""

    def __init__(self, model: object, parts: Sequence[str] = (), rows: int = 1) -> None:
        self.model, self.parts, self.rows = model, parts, rows

    def ready(self) -> object:
        return plain_products.swapped(self.parts)

    def start(self, ids: Sequence[int]) -> None:
        trunk = self.model.trunk
        with self.ready():
            self.cache = trunk.new_cache()
            states = trunk.forward(ids, self.cache)
            self.next = int(trunk.logits(states.part(len(ids) - 1, len(ids)))[0].argmax())

    def token(self) -> None:
        trunk = self.model.trunk
        if self.rows == 1:
            self.next = int(trunk.logits(trunk.forward([self.next], self.cache))[0].argmax())
            return
        before = self.cache.length
        self.cache.start()
        rows = trunk.logits(trunk.forward([self.next] * self.rows, self.cache))
        self.next = int(rows[0].argmax())
        self.cache.rollback(before + 1)


def take_turns(arms: dict[str, Theirs | Ours], rounds: int, block: int) -> dict[str, Times]:
    """Every arm's tokens but the first quarter of each block."""
    for arm in arms.values():
        arm.start([(7 * n + 3) % 1000 for n in range(PROMPT)])
    names, found = list(arms), {name: Times([], []) for name in arms}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with arms[name].ready():
                times = [clocked(arms[name].token) for _ in range(block)][max(1, block // 4) :]
            if turn:  # the first round warms up
                found[name].wall.append([wall for wall, _ in times])
                found[name].cpu.append([cpu for _, cpu in times])
    return found


def clocked(call: Callable[[], None]) -> tuple[float, float]:
    """(wall, CPU) milliseconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


@dataclass
class Times:
    """Milliseconds, per round and token."""

    wall: list[list[float]]
    cpu: list[list[float]]

    @property
    def middle(self) -> float:
        return statistics.median(value for one in self.wall for value in one)

    @property
    def least(self) -> float:
        return min(value for one in self.wall for value in one)

    @property
    def busy(self) -> float:
        return statistics.median(value for one in self.cpu for value in one)

    def over(self, other: Times) -> tuple[float, float, float]:
        """How many times as long as the other: by wall (median of rounds), by least wall, by CPU."""
        return _ratio(self.wall, other.wall), self.least / other.least, _ratio(self.cpu, other.cpu)


def _ratio(one: list[list[float]], other: list[list[float]]) -> float:
    pairs = zip(one, other, strict=True)
    return statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)


def per_token(found: Pair, rounds: int, block: int) -> None:
    arms = {
        "transformers, eager": Theirs(found.theirs, "eager"),
        "transformers, sdpa": Theirs(found.theirs, "sdpa"),
        "decoder, plain products": Ours(found.ours, plain_products.PARTS),
        "decoder, exact": Ours(found.ours),
    }
    times = take_turns(arms, rounds, block)
    exact = times["decoder, exact"]
    print(f"{'':<26}{'wall ms':>9}{'least':>9}{'CPU ms':>9}{'exact is':>12}{'by least':>10}{'by CPU':>9}")
    for name, one in times.items():
        wall, least, cpu = exact.over(one)
        print(f"{name:<26}{one.middle:>9.2f}{one.least:>9.2f}{one.busy:>9.2f}{wall:>11.2f}x{least:>9.2f}x{cpu:>8.2f}x")


def per_pass(found: Pair, rounds: int, block: int) -> None:
    """Passes of k + 1 rows, in CPU time."""
    widths = [1, *(k + 1 for k in KS)]
    arms = {f"{name} {n}": Ours(found.ours, parts, n) for name, parts in ARMS.items() for n in widths}
    times = take_turns(arms, rounds, max(2, block // 2))
    exact, plain = ARMS
    print(
        f"\n{'a pass of k + 1 rows, CPU':<28}" + "".join(f"{f'k={n - 1}' if n > 1 else 'one row':>10}" for n in widths)
    )
    for name in ARMS:
        print(f"{name + ', ms':<28}" + "".join(f"{times[f'{name} {n}'].busy:>10.2f}" for n in widths))
    for name in ARMS:
        cells = (times[f"{name} {n}"].over(times[f"{name} 1"])[2] for n in widths)
        print(f"{name + ', single rows':<28}" + "".join(f"{cell:>10.2f}" for cell in cells))
    cells = (times[f"{exact} {n}"].over(times[f"{plain} {n}"])[2] for n in widths)
    print(f"{'exact is':<28}" + "".join(f"{cell:>9.2f}x" for cell in cells))


ARMS = {"exact": (), "plain products": plain_products.PARTS}


def by_part(found: Pair, rounds: int, block: int) -> None:
    for rows in (1, 4):
        arms = {"exact": Ours(found.ours, (), rows)}
        arms |= {part: Ours(found.ours, (part,), rows) for part in plain_products.PARTS}
        arms |= {"all": Ours(found.ours, plain_products.PARTS, rows)}
        times = take_turns(arms, rounds, block)
        print(f"\na pass of {rows} row(s): {times['exact'].busy:.2f} CPU ms exact; with the plain form of")
        for name in [*plain_products.PARTS, "all"]:
            saved = 1 - times[name].over(times["exact"])[2]
            print(f"  {name:<12}{times[name].busy:>8.2f} ms{saved:>9.1%} less")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen35,qwen35moe,0.8B", help="fixtures, 0.8B, or folders")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parts", action="store_true", help="also: which part costs what")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(args.threads)
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {platform.machine()}, "
        f"{args.threads} thread(s); one token after {PROMPT} and more; arms in rotation, {args.rounds} rounds"
    )
    for name in args.models.split(","):
        for dtype in args.dtypes.split(","):
            with torch.inference_mode():
                found = pair(name, dtype)
                block = 4 if found.large else 24
                print(f"\n## {name}, {dtype}, {args.threads} thread(s), blocks of {block} tokens\n")
                per_token(found, args.rounds, block)
                per_pass(found, args.rounds, block)
                if args.parts:
                    by_part(found, args.rounds, block)
            del found


if __name__ == "__main__":
    main()
