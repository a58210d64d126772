"""benchmarks/stream.py measures a pass over a file that is what it says it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the decoder extra is not installed")

import torch

from benchmarks import stream as benchmark
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.run import stream
from mtptools.ops.validate import validate

FEW = benchmark.Shapes(4, 512)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K_M"])
def test_the_file_is_a_model(kind: str, tmp_path: Path) -> None:
    """Four layers of it are valid and can be read, and states stay in range over many positions."""
    path = tmp_path / "few.gguf"
    assert benchmark.write(path, kind, FEW) == path.stat().st_size
    ckpt = open_checkpoint(path)
    assert {finding.check for finding in validate(ckpt).findings} <= {"tokenizer-missing"}
    assert {tensor.codec for tensor in ckpt.values()} == (
        {"F32", "Q8_0"} if kind == "Q8_0" else {"F32", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
    )
    model = Streamed(ckpt, benchmark.passages(70, 512), device=torch.device("cpu"))
    assert model.outline.nbytes == sum(tensor.nbytes for tensor in ckpt.values())
    assert stream(model, 1, controls=False).trunk.counted == 69


def test_shapes_are_the_releases() -> None:
    """Those of the head are recorded as a converter spells them; all together are Qwen3.5-0.8B's parameters."""
    shapes = dict(benchmark.Shapes(24, 248320).matrices())
    facts = json.loads(benchmark.RELEASE.read_text(encoding="utf-8"))["gguf"]
    for name, (_, shape) in facts.items():
        before, _, rest = name.partition("{")
        kinds, _, after = rest.partition("}")
        for one in kinds.split(","):
            assert shapes[before + one + after if rest else name] == tuple(shape)
    trunk = sum(torch.Size(shape).numel() for name, shape in shapes.items() if not name.startswith("blk.24."))
    assert trunk == 752_393_024


def test_a_line_a_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--types", "Q8_0", "--positions", "4", "--runs", "1", "--layers", "4", "--vocab", "256"]
    benchmark.main([*options, "--folder", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "lowest limit: " in lines[-1]
    assert "cold" in lines[-1] or "warm: " in lines[-1]
    benchmark.main([*options, "--folder", str(tmp_path), "--profile"])
    assert "tottime" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
