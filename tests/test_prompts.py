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


@pytest.mark.parametrize(
    "line", ['{"prompt": 5}', '{"turns": 5}', '{"turns": [{"role": "user"}]}', '"\\ud800"', "9" * 5000, "[" * 100_000]
)
def test_records_without_text(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x"}\n' + line)
    with pytest.raises(InputError, match="line 2") as caught:
        load_prompts(path)
    assert caught.value.where == str(path)


def test_corrupt_gzip(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    whole = gzip.compress(b'{"prompt": "a rather long prompt"}\n' * 50)
    for data in (whole[:10] + b"\xff" * 40, whole[:-4], whole[:20], whole[:-8] + bytes(8)):
        path.write_bytes(data)
        with pytest.raises(InputError) as caught:
            load_prompts(path)
        assert caught.value.where == str(path)
        assert caught.value.hint


def test_lines_end_where_files_end_them(tmp_path: Path) -> None:
    """Not at the other separators of Unicode: these may stand in a JSON string, and in a line of text."""
    prompts = ["a\u2028b", "c\u0085d", "e\x0bf"]
    path = tmp_path / "p.jsonl"
    path.write_text("\r\n".join(json.dumps(p, ensure_ascii=False) for p in prompts), encoding="utf-8", newline="")
    assert load_prompts(path) == prompts
    text = tmp_path / "p.txt"
    text.write_text("\ufeff" + "\r\n".join(prompts), encoding="utf-8", newline="")
    assert load_prompts(text) == prompts


def test_json_list(tmp_path: Path) -> None:
    rows = ["plain", {"prompt": "he"}, {"turns": ["mt", "second"]}]
    for name in ("p.json", "p.json.gz"):
        path = tmp_path / name
        text = json.dumps(rows, indent=1).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        assert load_prompts(path) == ["plain", "he", "mt"]
    path = tmp_path / "lines.json"
    path.write_text("\n".join(map(json.dumps, rows)))
    assert load_prompts(path) == ["plain", "he", "mt"]
    for text, what in (("[]", "no prompt"), ('["a", 5]', "entry 2"), ('["a",', "not JSON")):
        path.write_text(text)
        with pytest.raises(InputError, match=what):
            load_prompts(path)


def test_turns_with_roles(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}
    path = tmp_path / "p.jsonl"
    for turns in ([user], [system, user], [system, user, {"role": "user", "content": "again"}]):
        path.write_text(json.dumps({"turns": turns}))
        assert load_prompts(path) == ["hello"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder of real prompts")
@pytest.mark.parametrize(
    ("name", "count"),
    [("mt_bench.jsonl", 80), ("spec_bench.jsonl", 480), ("HumanEval.jsonl.gz", 164), ("gsm8k_test.jsonl", 1319)],
)
def test_real_files(name: str, count: int) -> None:
    assert len(load_prompts(SHARED / name)) == count
