"""A file four times larger than the memory it may use is verified; loaded the ordinary way it does not fit.

The limit is RLIMIT_DATA of a process of its own: private memory that can be written, torch's among it. Pages of the
file that the system caches are not the process's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.decoder.stream import large

ROOM = 80 << 20
"""Bytes for the model, and to compile modules on their first import, on top of what Python takes with torch and the
tokenizers' library: 190 MB without CUDA."""

BASELINE = """
import re, tokenizers, torch
import mtptools.cli.main, mtptools.decoder.stream.run
torch.set_num_threads(1)
torch.ones(64, 64) @ torch.ones(64, 64)
print(int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
from mtptools.cli.main import main
main(sys.argv[2:])
"""


@dataclass(frozen=True)
class Case:
    path: Path
    limit: int
    sizes: large.Sizes


def child(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A file with holes: it takes no disk."""
    if not sys.platform.startswith("linux"):
        pytest.skip("RLIMIT_DATA counts all private memory on Linux alone")
    folder = tmp_path_factory.mktemp("four")
    limit = int(child(BASELINE).stdout) + ROOM
    layer = large.write(folder / "two.gguf", large.Sizes(layers=2)).stat().st_size
    layer -= large.write(folder / "one.gguf", large.Sizes(layers=1)).stat().st_size
    sizes = large.Sizes(layers=-(-4 * limit // layer))
    path = large.write(folder / "large.gguf", sizes)
    if path.stat().st_blocks * 512 > 64 << 20:
        shutil.rmtree(folder)
        pytest.skip("the file system has no holes: the file would take its whole size")
    ids = large.cycle(sizes, 24)
    (folder / "text.json").write_text(json.dumps({"prompt_tokens": ids[:4], "tokens": ids[4:]}))
    (folder / "prompts.txt").write_text("abab")
    return Case(path, limit, sizes)


def test_four_times_larger_than_memory(case: Case) -> None:
    """What it says is right: the file writes a cycle, and its head drafts it."""
    assert case.path.stat().st_size >= 4 * case.limit
    text = case.path.with_name("text.json")
    done = child(LIMITED, case.limit, "verify", case.path, "--stream", "--text", text, "--k", "2", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)["stream"]
    assert found["trunk"]["agreement"] == 1
    assert found["trunk"]["counted"] == 20
    assert found["own_text"]
    assert found["rates"]["conditional"] == [1, 1]
    assert found["rates"]["tried"] == [20, 19]
    assert found["bytes"] >= 4 * case.limit - (1 << 20), "all but the header"
    assert found["layers"] == list(range(case.sizes.layers))


def test_the_limit_is_one(case: Case) -> None:
    """Whole, the model does not go into that memory."""
    prompts = case.path.with_name("prompts.txt")
    done = child(LIMITED, case.limit, "verify", case.path, "--parity", "--tokens", "8", "--prompts", prompts)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "out of memory" in done.stderr
    assert "Traceback" not in done.stderr
