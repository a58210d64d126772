"""Checkpoints that mlx-lm converted are read by the decoder as the values that MLX reads. Needs no Apple."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from tests.conftest import FIXTURES, load_script

MISSING = [name for name in ("mlx", "mlx_lm", "torch") if find_spec(name) is None]
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs MLX and the decoder: pip install 'mtptools[mlx,decoder]' ({MISSING})"
    ),
]

IDS = [5, 17, 255, 3, 99, 42]


def python(*command: object) -> None:
    run = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


def digests(folder: Path) -> list[str]:
    from mtptools.decoder.load import load_model
    from mtptools.decoder.speculate import decode_plain

    return decode_plain(load_model(open_checkpoint(folder), check=False), IDS, 6).digests


@pytest.mark.parametrize("mode", ["affine", "mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("kind", ["qwen35moe", "glm4lite"])
def test_logits_are_those_of_mlxs_values(kind: str, mode: str, tmp_path: Path) -> None:
    """Routers have an entry without a mode, which is affine; 48 values a head stay float."""
    load_script("permutation").build(kind, tmp_path / "hf", dtype="BF16")
    options = ["--hf-path", tmp_path / "hf", "--mlx-path", tmp_path / "mlx", "-q", "--q-mode", mode]
    python("-m", "mlx_lm", "convert", *options)
    python(FIXTURES / "mlx" / "dequantize.py", tmp_path / "mlx", tmp_path / "values")
    names = set(open_checkpoint(tmp_path / "mlx"))
    assert sum(name.endswith(".scales") for name in names) > 15
    assert digests(tmp_path / "mlx") == digests(tmp_path / "values")


def test_a_float_conversion_has_the_releases_logits(tmp_path: Path) -> None:
    """Names, `1 + w`, the convolution's layout, stacked experts."""
    load_script("permutation").build("qwen35moe", tmp_path / "hf")
    python(FIXTURES / "mlx" / "run_mlx.py", "convert", tmp_path / "hf", tmp_path / "mlx")
    assert digests(tmp_path / "mlx") == digests(tmp_path / "hf")
