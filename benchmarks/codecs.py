"""ggml's block types: our encoders, in numpy and compiled by numba, against ggml's own C code, on the same matrix.

    python benchmarks/codecs.py [--types Q4_K,Q6_K] [--threads 1,2] [--runs 5] [--rows 1024] [--library libggml-base.so]
    python benchmarks/codecs.py --decode …      decoders: gguf-py's (numpy), numba's, and C's `dequantize_row_*`

One worker process for each arm makes the same matrix (and importance row) and runs what it is told; ggml's is loaded
from the installed wheel, or from `--library`, into a worker of its own. The arms take turns, so that a drifting machine
hurts them alike. Threads share the rows out between them; all arms release the interpreter's lock. A ratio is of the
speeds of one turn; the table has medians over turns, and the smallest and largest ratio. MB are of float32.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import numpy as np

from mtptools.codecs import CODECS, ggml, ggml_library, iq4, kquants, legacy

MODULES = {name: module for module in (kquants, legacy, iq4) for name in module.TYPES}
COLS = 2048
Encode = Callable[[np.ndarray, str, "np.ndarray | None"], object]
Decode = Callable[[np.ndarray, str], object]


def c_encoder(path: str) -> Encode:
    """ggml's `ggml_quantize_chunk` of a shared object."""
    library = ctypes.CDLL(path)
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.ggml_quantize_chunk.argtypes = (ctypes.c_int, pointer, pointer, integer, integer, integer, pointer)

    def encode(values: np.ndarray, codec: str, importance: np.ndarray | None) -> object:
        rows, cols = values.shape
        out = np.empty((rows, CODECS[codec].row_bytes(cols)), np.uint8)
        weights = None if importance is None else importance.ctypes.data
        number = CODECS[codec].ggml_id
        library.ggml_quantize_chunk(number, values.ctypes.data, out.ctypes.data, 0, rows, cols, weights)
        return out

    return encode


def c_decoder(path: str) -> Decode:
    """ggml's `dequantize_row_*` of a shared object."""
    library = ctypes.CDLL(path)

    def decode(blocks: np.ndarray, codec: str) -> object:
        out = np.empty((len(blocks), COLS), np.float32)
        run = library["dequantize_row_" + codec.lower().replace("_k", "_K")]
        run(ctypes.c_void_p(blocks.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(out.size))
        return out

    return decode


def encoding(arm: str, rows: int) -> Callable[[str, bool], tuple[np.ndarray, Callable[[np.ndarray], object]]]:
    """What a type's work is: rows, and what is done with some of them."""
    random = np.random.default_rng(0)
    values = (random.standard_normal((rows, COLS)) * 0.02).astype(np.float32)
    importance = (random.random(COLS) + 0.01).astype(np.float32)
    if arm in ("numpy", "numba"):
        encode: Encode = lambda v, codec, row: MODULES[codec].encode(v, codec, row, engine=arm)  # noqa: E731
    else:
        encode = c_encoder(arm)
    return lambda codec, weighted: (values, lambda part: encode(part, codec, importance if weighted else None))


def decoding(arm: str, rows: int) -> Callable[[str, bool], tuple[np.ndarray, Callable[[np.ndarray], object]]]:
    """As `encoding`: of random bytes whose scales are finite."""
    random = np.random.default_rng(0)
    if arm in ("numpy", "numba"):
        decode: Decode = lambda blocks, codec: ggml.decode(blocks.data, codec, COLS, engine=arm)  # noqa: E731
    else:
        decode = c_decoder(arm)

    def of(codec: str, _: bool) -> tuple[np.ndarray, Callable[[np.ndarray], object]]:
        blocks = random.integers(0, 256, (rows, CODECS[codec].row_bytes(COLS)), np.uint8) & 0x3B
        return blocks, lambda part: decode(part, codec)

    return of


def work(arm: str, rows: int, decode: bool) -> None:
    """Answers each line [type, with importance, threads] on standard input with seconds."""
    task = (decoding if decode else encoding)(arm, rows)
    for line in sys.stdin:
        codec, weighted, threads = json.loads(line)
        values, run = task(codec, weighted)
        run(values[:8])
        parts = np.array_split(values, threads)
        with ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(run, parts))
            print(time.perf_counter() - start, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--types")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1024, help=f"of {COLS} values")
    parser.add_argument("--library", help="a shared object that exports ggml_quantize_chunk")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.rows, args.decode)
        return
    wheel = ggml_library._library()
    if not args.library and wheel is None:
        raise SystemExit("no ggml: pip install xllamacpp, or --library")
    arms = {"numpy": "numpy", "C": args.library or str(wheel[1])}
    if find_spec("numba"):
        arms["numba"] = "numba"
    command = [sys.executable, __file__, *(["--decode"] if args.decode else []), "--rows", str(args.rows), "--worker"]
    workers = {
        name: subprocess.Popen([*command, arm], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for name, arm in arms.items()
    }
    size = args.rows * COLS * 4 / 1e6
    print(
        f"{platform.machine()}, {args.rows} x {COLS} values, medians of {args.runs} turns, ratios to C: median (range)"
    )
    print(f"{'':<20}{'threads':>8}{'C MB/s':>8}" + "".join(f"{n + ' MB/s':>12}{'ratio':>20}" for n in arms if n != "C"))
    types = args.types.split(",") if args.types else sorted(ggml.COMPILED) if args.decode else list(MODULES)
    for codec in types:
        for weighted in (False,) if args.decode else (False, True):
            for threads in map(int, args.threads.split(",")):
                seconds: dict[str, list[float]] = {name: [] for name in arms}
                for _ in range(args.runs):
                    for name, worker in workers.items():
                        worker.stdin.write(json.dumps([codec, weighted, threads]) + "\n")
                        seconds[name].append(float(worker.stdout.readline()))
                name = codec + (" importance" if weighted else "")
                line = f"{name:<20}{threads:>8}{size / statistics.median(seconds['C']):>8.0f}"
                for arm in [arm for arm in arms if arm != "C"]:
                    ratios = [c / ours for c, ours in zip(seconds["C"], seconds[arm], strict=True)]
                    spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
                    line += f"{size / statistics.median(seconds[arm]):>12.0f}{spread:>20}"
                print(line, flush=True)
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()


if __name__ == "__main__":
    main()
