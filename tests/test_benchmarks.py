"""What the benchmarks measure on is a checkpoint like any other."""

from __future__ import annotations

from pathlib import Path

from benchmarks import synthetic
from mtptools.checkpoint import open_checkpoint
from mtptools.ops.validate import validate


def test_synthetic_file_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "s.gguf"
    synthetic.write(path, 4, 1, "Q8_0", n_tokens=64, vocab=64)
    result = validate(open_checkpoint(path))
    assert {finding.check for finding in result.findings} <= {"tokenizer-missing"}, result.findings
