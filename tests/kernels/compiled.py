"""What a script that compiles kernels says of each job: in a process of its own, where triton compiles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Looks = dict[str, dict[str, Any]]


def looks(script: str, jobs: Sequence[str]) -> Looks:
    """The lines of `tests.kernels.SCRIPT JOB…`, by job."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.kernels.{script}", *jobs],
            env=environment | {"TRITON_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return {found["job"]: found for found in map(json.loads, done.stdout.splitlines())}
