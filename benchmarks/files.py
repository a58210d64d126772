"""Opening and grafting large GGUF files, side by side with gguf-py and cp.

    python benchmarks/files.py --dir SCRATCH [--layers 34] [--runs 3]

Every command runs as a process of its own, in rotation, so that a drifting machine hurts all of them alike. Times are
wall seconds until the data is on the disk (fsync); memory is the largest resident set, mapped file pages included
(gguf-py maps the file, so its figure is mostly the file).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import synthetic

MEASURE = """
import os, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL).returncode
if sys.argv[1] != '-' and os.path.exists(sys.argv[1]):
    handle = os.open(sys.argv[1], os.O_RDONLY); os.fsync(handle); os.close(handle)
print(code, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def measure(command: list[str], written: Path | None) -> tuple[float, float]:
    """(wall seconds until on disk, peak resident MB) of one command; its output file is removed after."""
    target = str(written) if written is not None else "-"
    text = subprocess.run(
        [sys.executable, "-c", MEASURE, target, *command], capture_output=True, text=True, check=True
    ).stdout
    code, seconds, kilobytes = text.split()
    if code != "0":
        raise SystemExit(f"failed: {' '.join(command)}")
    if written is not None:
        written.unlink()
        for extra in written.parent.glob(written.name + ".*"):
            extra.unlink()
    return float(seconds), float(kilobytes) / 1000


def rotate(commands: dict[str, tuple[list[str], Path | None]], runs: int, size: int, base: str) -> None:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(runs):
        for name, (command, written) in commands.items():
            os.sync()
            found[name].append(measure(command, written))
    reference = [seconds for seconds, _ in found[base]]
    print(f"{'':<22}{'median s':>10}{'min':>8}{'max':>8}{'GB/s':>8}{'peak MB':>10}{'x ' + base:>16}")
    for name, rows in found.items():
        seconds = [row[0] for row in rows]
        ratio = statistics.median(a / b for a, b in zip(seconds, reference, strict=True))
        middle = statistics.median(seconds)
        print(
            f"{name:<22}{middle:>10.2f}{min(seconds):>8.2f}{max(seconds):>8.2f}{size / middle / 1e9:>8.2f}"
            f"{max(row[1] for row in rows):>10.0f}{ratio:>16.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="scratch folder with room for three times the file")
    parser.add_argument("--layers", type=int, default=34, help="34 layers of Qwen3.5-27B in Q4_K are about 8 GB")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    trunk, donor, header, out = (args.dir / name for name in ("trunk.gguf", "donor.gguf", "header.gguf", "out.gguf"))
    start = time.perf_counter()
    size = synthetic.write(trunk, args.layers, 0, "Q4_K")
    head = synthetic.write(donor, args.layers, 1, "Q4_K")
    synthetic.write(header, 0, 0, "F32", vocab=256)
    print(f"trunk {size / 1e9:.2f} GB, donor {head / 1e9:.2f} GB, made in {time.perf_counter() - start:.0f} s\n")
    python, tool = sys.executable, [sys.executable, "-m", "mtptools"]
    opening = "from mtptools.containers.gguf import read_index; from pathlib import Path; import sys; "
    print("opening a file with 248,000 tokens and merges")
    rotate(
        {
            "mtptools": ([python, "-c", opening + "read_index(Path(sys.argv[1]))", str(header)], None),
            "mtptools inspect": ([*tool, "inspect", "-q", str(trunk)], None),
            "gguf-py GGUFReader": (
                [python, "-c", "import gguf, sys; gguf.GGUFReader(sys.argv[1])", str(header)],
                None,
            ),
        },
        args.runs,
        header.stat().st_size,
        "mtptools",
    )
    print(f"\ngrafting a head onto {size / 1e9:.1f} GB")
    new_metadata = [python, "-m", "gguf.scripts.gguf_new_metadata", "--force", "--general-name", "x"]
    rotate(
        {
            "cp": (["cp", str(trunk), str(out)], out),
            "mtptools graft": ([*tool, "graft", "-q", str(trunk), str(donor), "-o", str(out)], out),
            "gguf_new_metadata": ([*new_metadata, str(trunk), str(out)], out),
        },
        args.runs,
        size,
        "cp",
    )
    shutil.rmtree(args.dir)


if __name__ == "__main__":
    main()
