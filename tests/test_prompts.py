"""Prompt files in the formats of common benchmarks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mtptools.errors import InputError
from mtptools.prompts import builtin_prompts, load_prompts

SHARED = Path(__file__).parents[2] / "shared" / "real" / "prompts"


def test_builtin() -> None:
    assert len(builtin_prompts()) >= 6
    assert any("def " in prompt for prompt in builtin_prompts())


def test_formats(tmp_path: Path) -> None:
    rows = [{"turns": ["mt", "second"]}, {"prompt": "he"}, {"question": "gsm"}, {"text": "t"}, "plain"]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert load_prompts(path) == ["mt", "he", "gsm", "t", "plain"]
    packed = tmp_path / "p.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert load_prompts(packed) == load_prompts(path)
    text = tmp_path / "p.txt"
    text.write_text("one\n\n two \n", encoding="utf-8")
    assert load_prompts(text) == ["one", " two "]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xff\xfe\x00", b"\x1f\x8bnope"])
def test_bad_text(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes(data)
    with pytest.raises(InputError):
        load_prompts(path)


@pytest.mark.parametrize("line", ["{", "3", '{"other": 1}', '{"turns": []}'])
def test_bad_jsonl(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x"}\n' + line)
    with pytest.raises(InputError, match="line 2"):
        load_prompts(path)
    with pytest.raises(InputError):
        load_prompts(tmp_path / "none.txt")


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder of real prompts")
@pytest.mark.parametrize(
    ("name", "count"),
    [("mt_bench.jsonl", 80), ("spec_bench.jsonl", 480), ("HumanEval.jsonl.gz", 164), ("gsm8k_test.jsonl", 1319)],
)
def test_real_files(name: str, count: int) -> None:
    assert len(load_prompts(SHARED / name)) == count
