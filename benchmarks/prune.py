"""Pruning the head of a sidecar with Qwen3.6-27B's vocabulary (248,320 x 5,120): time, memory, against a plain copy.

    python benchmarks/prune.py --folder FOLDER [--type Q6_K] [--sizes 16384,32768,65536]

Tokens are drawn at random, the worst case for reading: kept rows lie everywhere. "copy" reads the output matrix and
writes as many bytes as are kept. Peak memory is the process's largest resident size; "extra" is that less the same
command's with --dry-run. Needs 6 GB in the folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from mtptools.codecs import CODECS, encode
from mtptools.containers.gguf import header_bytes, padded
from mtptools.families import family_named
from mtptools.tensors import Blob, Tensor

sys.path.insert(0, str(Path(__file__).parent))

from heads import measure
from synthetic import ALIGNMENT, HPARAMS, metadata

VOCABULARY = 248_320


def write(path: Path, kind: str, vocabulary: int = VOCABULARY) -> int:
    """A sidecar: block 64, embedding, norm and output matrix of random bytes; returns bytes of the last."""
    sizes, tensors = replace(HPARAMS, vocab_size=vocabulary).size, []
    for role in (*family_named("qwen35").head, *family_named("qwen35").trunk["all"]):
        if role.required or role.name == "output.weight":
            shape = tuple(sizes(size) for size in role.shape)
            codec = kind if role.kind in ("output", "embedding") else "F32" if role.kind == "norm" else "BF16"
            rows = int(np.prod(shape[:-1]))
            blob = Blob(Path(), 0, rows * CODECS[codec].row_bytes(shape[-1]))
            name = (
                role.name
                if role.kind in ("output", "embedding") or "output_norm" in role.name
                else f"blk.64.{role.name}"
            )
            tensors.append(Tensor(name, shape, codec, (blob,)))
    noise = np.random.default_rng(0).normal(0, 0.02, (1, 1 << 22)).astype(np.float32)
    data = {codec: encode(noise, codec) for codec in {tensor.codec for tensor in tensors}}
    with open(path, "wb") as file:
        file.write(header_bytes(metadata(64, 1, vocabulary), tensors, ALIGNMENT))
        for tensor in tensors:
            left = padded(tensor.nbytes, ALIGNMENT)
            while left:
                left -= file.write(data[tensor.codec][: min(left, len(data[tensor.codec]))])
    return next(tensor.nbytes for tensor in tensors if tensor.name == "output.weight")


def copied(source: Path, out: Path, nbytes: int, kept: int) -> float:
    """Seconds to read so many bytes and write so many."""
    start = time.perf_counter()
    with open(source, "rb", buffering=0) as reader, open(out, "wb", buffering=0) as writer:
        while nbytes > 0:
            data = reader.read(min(nbytes, 8 << 20))
            nbytes -= len(data) or nbytes
            kept -= writer.write(data[: max(kept, 0)])
    out.unlink()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--type", default="Q6_K")
    parser.add_argument("--sizes", default="16384,32768,65536,98304")
    asked = parser.parse_args()
    source, out, ids = (asked.folder / name for name in ("sidecar.gguf", "out.gguf", "ids.json"))
    nbytes = write(source, asked.type)
    print(f"output matrix: {nbytes / 1e6:.0f} MB in {asked.type}; file: {source.stat().st_size / 1e6:.0f} MB")
    print("| tokens | kept MB | seconds | copy of the file | peak MB | extra MB |\n|---|---|---|---|---|---|")
    for size in map(int, asked.sizes.split(",")):
        chosen = np.sort(np.random.default_rng(size).choice(VOCABULARY, size, replace=False))
        ids.write_text(json.dumps(chosen.tolist()))
        command = (sys.executable, "-m", "mtptools", "prune-vocab", str(source), "-o", str(out), "--force", "-q")
        command += ("--ids", str(ids), "--as-given")
        _, bare = measure(*command, "--dry-run")
        seconds, peak = measure(*command)
        kept = nbytes * size // VOCABULARY
        rest = source.stat().st_size - nbytes
        plain = copied(source, out, source.stat().st_size, rest + kept)
        print(
            f"| {size} | {kept / 1e6:.0f} | {seconds:.1f} | {plain:.1f} | {peak:.0f} | {peak - bare:.0f} |", flush=True
        )
        for path in asked.folder.glob("out.gguf*"):
            path.unlink()
    for path in (source, ids):
        path.unlink()


if __name__ == "__main__":
    main()
