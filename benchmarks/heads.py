"""A whole head of Qwen3.6-27B's shape (425 million weights, BF16) quantized by the command line: time and memory.

    python benchmarks/heads.py --folder FOLDER [--types Q4_K,Q6_K]

Peak memory is the process's largest resident size; "extra" is that less the same command's with --dry-run, which
reads headers and plans. Needs 1.5 GB in the folder. Weights are normal with a deviation of 0.02.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mtptools.codecs import encode
from mtptools.containers.gguf import header_bytes, padded
from mtptools.families import family_named
from mtptools.tensors import Blob, Tensor

sys.path.insert(0, str(Path(__file__).parent))

from synthetic import ALIGNMENT, HPARAMS, metadata

MEASURE = """
import resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
# The command line where numba is not installed.
PLAIN = "import sys; sys.modules['numba'] = None; from mtptools.cli.main import main; main(sys.argv[1:])"


def write(path: Path) -> int:
    """A bare head, block 64 of the model; returns the number of its weights."""
    sizes, tensors = HPARAMS.size, []
    for role in family_named("qwen35").head:
        if role.required:
            shape = tuple(sizes(size) for size in role.shape)
            codec = "BF16" if role.kind == "matrix" else "F32"
            nbytes = int(np.prod(shape)) * (2 if codec == "BF16" else 4)
            tensors.append(Tensor(f"blk.64.{role.name}", shape, codec, (Blob(Path(), 0, nbytes),)))
    noise = np.random.default_rng(0).normal(0, 0.02, (1, 1 << 23)).astype(np.float32)
    data = {codec: encode(noise, codec) for codec in ("BF16", "F32")}
    with open(path, "wb") as file:
        file.write(header_bytes(metadata(64, 1, 1000), tensors, ALIGNMENT))
        for tensor in tensors:
            left = padded(tensor.nbytes, ALIGNMENT)
            while left:
                left -= file.write(data[tensor.codec][: min(left, len(data[tensor.codec]))])
    return sum(tensor.n_values for tensor in tensors)


def measure(*command: str) -> tuple[float, float]:
    """Seconds and MB of a command, and of what it starts."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], capture_output=True, text=True, check=True)
    code, seconds, kilobytes = done.stdout.split()
    if int(code):
        raise SystemExit(done.stderr)
    return float(seconds), int(kilobytes) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--types", default="Q8_0,Q6_K,Q5_K,Q4_K,IQ4_XS")
    asked = parser.parse_args()
    source, out = asked.folder / "head.gguf", asked.folder / "out.gguf"
    weights = write(source)
    print(f"{weights / 1e6:.0f} million weights, {source.stat().st_size / 1e6:.0f} MB; {os.cpu_count()} cores")
    print("| type | engine | seconds | MB/s of float32 | peak MB | extra MB |\n|---|---|---|---|---|---|")
    start = time.perf_counter()
    for kind in asked.types.split(","):
        for engine, program in (("numba", ("-m", "mtptools")), ("numpy", ("-c", PLAIN))):
            command = (
                sys.executable,
                *program,
                "quantize",
                str(source),
                "-o",
                str(out),
                "--head",
                kind,
                "--force",
                "-q",
            )
            _, bare = measure(*command, "--dry-run")
            seconds, peak = measure(*command)
            speed = weights * 4 / 1e6 / seconds
            print(f"| {kind} | {engine} | {seconds:.1f} | {speed:.0f} | {peak:.0f} | {peak - bare:.0f} |", flush=True)
            for path in asked.folder.glob("out.gguf*"):
                path.unlink()
    source.unlink()
    print(f"{time.perf_counter() - start:.0f} s in all")


if __name__ == "__main__":
    main()
