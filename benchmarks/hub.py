"""`mtptools extract` of a 20 GB release on a loopback hub whose connections are cut every 50 MB: bytes and time.

    python -m benchmarks.hub [--gigabytes 20] [--head-megabytes 300] [--cut-megabytes 50]

The release takes no space: the server makes its bytes as they are asked for, and the files of the cache are sparse.
The head takes its own bytes twice, in the cache and in the output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.hub.releases import MB, release
from tests.hub.server import serving

CONFIG = Path(__file__).parents[1] / "fixtures" / "qwen35" / "hf" / "config.json"


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gigabytes", type=float, default=20)
    options.add_argument("--head-megabytes", type=float, default=300)
    options.add_argument("--cut-megabytes", type=float, default=50)
    given = options.parse_args(argv)
    made = release(json.loads(CONFIG.read_bytes()), given.gigabytes, given.head_megabytes)
    total = sum(content.size for content in made.files.values())
    print(f"release: {total / 1e9:.2f} GB, {len(made.files)} files; head and embedding: {made.nbytes / 1e6:.1f} MB")
    with serving() as hub, tempfile.TemporaryDirectory() as folder:
        hub.add("user/repo", made.files)
        hub.faults.cut_every = int(given.cut_megabytes * MB)
        out = Path(folder) / "head"
        env = {**os.environ, "HF_ENDPOINT": hub.url, "MTPTOOLS_CACHE": f"{folder}/cache", "HF_HOME": f"{folder}/hf"}
        env["NO_PROXY"] = "127.0.0.1"
        start = time.perf_counter()
        command = [sys.executable, "-m", "mtptools", "extract", "user/repo", "-o", str(out), "-q"]
        code = subprocess.run(command, env=env, check=False).returncode
        took = time.perf_counter() - start
        extra = hub.sent / made.nbytes - 1
        print(f"extract: exit code {code}, {took:.1f} s, {len(hub.log)} requests, {hub.cuts} cuts")
        print(f"sent: {hub.sent / 1e6:.2f} MB, {extra:+.2%} of what was wanted")
        same = code == 0 and made.same(out / "model.safetensors")
        print(f"bytes equal: {same}")
        return 0 if same and extra < 0.01 else 1


if __name__ == "__main__":
    raise SystemExit(main())
