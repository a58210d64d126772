"""bench from the command line: table, JSON, plot, refusals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from mtptools.cli.verifying import parse_ks
from mtptools.prompts import Prompt, read_prompts, spread
from tests.conftest import FIXTURES

SHARED = Path(__file__).parents[3] / "shared" / "real" / "prompts"
BRIEF = ("--k", "1..2", "--tokens", "8", "--runs", "1")


def table_after(text: str, title: str) -> list[list[str]]:
    """Cells of the first table after a line that begins with `title`."""
    lines = text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(title))
    start = next(n for n in range(at, len(lines)) if lines[n].startswith("|"))
    end = next(n for n in range(start, len(lines) + 1) if n == len(lines) or not lines[n].startswith("|"))
    assert len({len(line) for line in lines[start:end]}) == 1, "columns are aligned"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def test_tables_and_json_tell_the_same(run: Any, full: Path, tmp_path: Path) -> None:
    code, text, err = run("bench", full, *BRIEF, "--limit", "3")
    assert code == 0, text + err
    assert re.search(r"float32 on cpu \(.*, 1 thread\), torch \d", text)
    assert "output: that of plain decoding, 48 logits rows" in text
    code, out, _ = run("bench", full, *BRIEF, "--limit", "3", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["ok"]
    decoder = data["decoder"]
    speeds = table_after(text, "output:")
    assert [row[0] for row in speeds[2:]] == ["plain", "1", "2"]
    positions, conditional = (
        table_after(text, "accepted, of the steps that"),
        table_after(text, "accepted, of the steps in"),
    )
    lengths = table_after(text, "mean length by category")
    for at, one in enumerate(decoder["acceptance"], 2):
        assert positions[at][1 : 1 + one["k"]] == [f"{share:.1%}" for share in one["per_position"]]
        assert conditional[at][1 : 1 + one["k"]] == [f"{share:.1%}" for share in one["conditional"]]
        assert speeds[at + 1][1] == f"{one['mean_length']:.2f}" == lengths[-1][at]
    assert [row[0] for row in lengths[2:]] == [*decoder["categories"], "all"]
    assert text.rstrip().splitlines()[-1].startswith("best k of those measured: ")
    first = decoder["per_prompt"][0]
    assert first["prompt"].startswith("The old harbour")
    assert [arm["k"] for arm in first["arms"]] == [0, 1, 2]


def test_verify_takes_it_as_a_baseline(run: Any, tmp_path: Path) -> None:
    full, report = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf", tmp_path / "bench.json"
    report.write_text(run("bench", full, *BRIEF, "--json")[1])
    flags = ("--parity", "--k", "1,2", "--tokens", "8", "--baseline", report, "--min-acceptance", "100%")
    assert run("verify", full, *flags, "-q")[0] == 0


def test_another_output_fails_the_run(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtptools.decoder import bench

    decode = bench._decode

    def faulty(model: Any, ids: Any, n: int, k: int) -> Any:
        trace = decode(model, ids, n, k)
        trace.digests[-1] = str(k)
        return trace

    monkeypatch.setattr(bench, "_decode", faulty)
    path = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    code, text, _ = run("bench", path, *BRIEF, "--limit", "1")
    assert code == 1
    assert "DIFFERS from plain decoding" in text
    assert "FAIL  prompt 1, k=1, run 1 differs from token 7 on (tokens agree, logits do not)" in text
    code, text, _ = run("bench", path, *BRIEF, "--limit", "1", "--json")
    assert (code, json.loads(text)["ok"]) == (1, False)


def test_ranges() -> None:
    assert parse_ks("1..4,8") == (1, 2, 3, 4, 8)
    assert parse_ks("2,1,2") == (1, 2)
    assert parse_ks("1..1") == (1,)


@pytest.mark.parametrize("k", ["1..", "0..3", "5..2", "1..999999999", "1...3", "x", "1..65"])
def test_bad_k(run: Any, k: str) -> None:
    code, _, err = run("bench", FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf", "--k", k)
    assert code == 2
    assert "--k" in err


def test_no_head(run: Any, trunk_q8: Path) -> None:
    code, _, err = run("bench", trunk_q8, *BRIEF)
    assert code == 3
    assert "no head" in err


def test_plot(run: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    path = tmp_path / "b.svg"
    full = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    code, _, err = run("bench", full, *BRIEF, "--limit", "2", "--plot", path)
    assert code == 0, err
    text = path.read_text(encoding="utf-8")
    for label in ("prose", "speech", "all", "k=1", "k=2", "speedup over plain", "draft position"):
        assert f">{label}<" in text
    assert "1 thread" in text


@pytest.mark.parametrize(("name", "code"), [("b.pdf", 2), ("b", 2), ("none/b.svg", 2), (".svg", 2)])
def test_bad_plot_is_refused_before_loading(run: Any, name: str, code: int, tmp_path: Path) -> None:
    found, _, err = run("bench", tmp_path / "no-model.gguf", "--plot", tmp_path / name)
    assert (found, "hint:" in err) == (code, True)


def test_without_matplotlib(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = run("bench", tmp_path / "no-model.gguf", "--plot", tmp_path / "b.svg")
    assert code == 7
    assert "pip install 'mtptools[plot]'" in err


def test_categories_of_prompt_files(tmp_path: Path) -> None:
    rows: list[object] = [
        {"prompt": "a", "category": "math "},
        {"prompt": "b", "task_id": "HumanEval/3"},
        {"prompt": "c"},
        "d",
    ]
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {"prompt": "e", "category": 7, "task_id": 5}])))
    assert [one.category for one in read_prompts(path)] == ["math", "HumanEval", "", "", ""]
    assert len({one.category for one in read_prompts(None)}) == len(read_prompts(None))


def test_limit_takes_of_each_category_in_turn() -> None:
    prompts = [Prompt(str(n), category) for n, category in enumerate("aaabbc")]
    assert [one.text for one in spread(prompts, 4)] == ["0", "1", "3", "5"]
    assert [one.text for one in spread(prompts, 1)] == ["0"]
    assert spread(prompts, None) == prompts == spread(prompts, 100)
    plain = [Prompt(str(n)) for n in range(4)]
    assert spread(plain, 2) == plain[:2]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder of real prompts")
@pytest.mark.parametrize(
    ("name", "categories"),
    [("spec_bench.jsonl", 13), ("mt_bench.jsonl", 8), ("HumanEval.jsonl.gz", 1), ("gsm8k_test.jsonl", 1)],
)
def test_categories_of_real_files(name: str, categories: int) -> None:
    prompts = read_prompts(SHARED / name)
    assert len({one.category for one in prompts}) == categories
    assert len({one.category for one in spread(prompts, categories)}) == categories
    assert (prompts[0].category == "") == name.startswith("gsm8k")
