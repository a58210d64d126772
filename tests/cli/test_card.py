"""The section of a model card: every number is of the report or the file, and what was not verified is said."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.head import head_names
from mtptools.ops.artifact import artifact
from mtptools.report.card import Card, card
from mtptools.report.html import html_report
from mtptools.report.levels import percent
from tests.report import made

FULL = made.GGUF / "model-BF16.gguf"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "verify.json"
    path.write_text(json.dumps(made.verification()))
    return path


def floats(value: Any) -> Iterator[float]:
    """Every number in a JSON object."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from floats(one)
    elif isinstance(value, float):
        yield value


def test_a_card(run: Any, report: Path, tmp_path: Path) -> None:
    out = tmp_path / "card.md"
    code, printed, err = run("card", FULL, "--report", report, "-o", out)
    assert (code, printed) == (0, ""), err
    text, data = out.read_text(), made.verification()
    shares = re.findall(r"\d+\.\d%", text)
    assert len(shares) > 12
    assert set(shares) <= {percent(number) for number in floats(data)}
    for fact in ("| block_count | 5 |", "| nextn_predict_layers | 1 |", "15 tensors", "BF16 × 8"):
        assert fact in text
    assert data["command"] in text
    for gap in ("L5 Runtime: not run", "Speed was not measured", "What this file was made from is not recorded"):
        assert gap in text.partition("What was not verified")[2]
    assert run("card", FULL, "--report", report, "-o", out, "-q")[0] == 0, "a card replaces a card"


def test_sums(run: Any, tmp_path: Path) -> None:
    sums = tmp_path / "head.sha256"
    assert run("card", FULL, "--sums", sums)[0] == 0
    found = dict(line.split("  ")[::-1] for line in sums.read_text().splitlines())
    ckpt = open_checkpoint(FULL)
    assert found == {name: hashlib.sha256(ckpt[name].read()).hexdigest() for name in head_names(ckpt)}
    assert run("card", made.GGUF / "trunk-Q8_0.gguf", "--sums", sums)[0] == 3, "no head"


def test_without_a_report(run: Any) -> None:
    code, text, _ = run("card", FULL)
    assert code == 0
    assert "Nothing was verified" in text
    assert "%" not in text
    assert "To repeat it" not in text, "there is nothing to repeat"


def test_a_page_is_as_good_as_its_json(run: Any, report: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(html_report(made.verification()))
    assert run("card", FULL, "--report", page)[1] == run("card", FULL, "--report", report)[1]


def test_a_failure_is_said_first(run: Any, report: Path) -> None:
    data = {**made.verification(), "runtime": made.runtime(), "ok": False, "failures": ["L5 runtime: *it* differs"]}
    report.write_text(json.dumps(data))
    code, text, _ = run("card", FULL, "--report", report)
    assert code == 1
    assert text.index("did not pass") < text.index("| file |")
    assert r"\*it\*" in text
    assert "Run in llama.cpp build 1" in text
    assert "L5 Runtime: not run" not in text
    assert "Oldest build known to run it: none: the one above failed." in text


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda data: data["artifact"]["files"][0].update(bytes=1), "not a report of this gguf file"),
        (lambda data: data.update(schema=2), "schema 2"),
        (lambda data: data.pop("lineage"), "a verification is wanted"),
        (lambda data: data.pop("static"), "damaged"),
        (lambda data: data["decoder"]["acceptance"][0].pop("rate"), "damaged"),
        (lambda data: data["decoder"]["acceptance"][0].update(rate=10**400), "damaged"),
        (lambda data: data["artifact"]["files"][0].update(header_sha256=[[]]), "not a report of this gguf file"),
        (lambda data: data.pop("path"), "no verification of mtptools"),
    ],
)
def test_not_its_report(run: Any, report: Path, edit: Any, what: str) -> None:
    data = made.verification()
    edit(data)
    report.write_text(json.dumps(data))
    code, _, err = run("card", FULL, "--report", report)
    assert (code, what in err) == (3, True), err


def test_a_name_is_no_command(run: Any, tmp_path: Path) -> None:
    """What is pasted into a shell names the file, whatever it is called; a command of the receipt says where to."""
    odd = tmp_path / "m $(touch x).gguf"
    odd.hardlink_to(FULL)
    _, text, _ = run("card", odd)
    assert "llama-server -m 'm $(touch x).gguf' --spec-type draft-mtp" in text
    made_by = tmp_path / "mine.gguf"
    assert run("graft", made.GGUF / "trunk-Q8_0.gguf", FULL, "-o", made_by)[0] == 0
    _, text, _ = run("card", made_by)
    assert "mtptools graft trunk-Q8_0.gguf model-BF16.gguf -o mine.gguf" in text


def test_no_command_that_cannot_run() -> None:
    """A head over fewer tokens: what says that nothing loads it stands alone."""
    found = artifact(open_checkpoint(FULL))
    assert "llama-server -m" in card(Card(found))
    assert "llama-server -m" not in card(Card(found | {"loaders": ["NO BUILD LOADS THIS FILE"]}))


def test_no_report_at_all(run: Any, tmp_path: Path) -> None:
    assert run("card", FULL, "--report", tmp_path / "none.json")[0] == 3
    (tmp_path / "x.json").write_text("nothing")
    assert run("card", FULL, "--report", tmp_path / "x.json")[0] == 3


def test_a_readme_is_not_replaced(run: Any, tmp_path: Path) -> None:
    mine = tmp_path / "README.md"
    mine.write_text("# mine\n")
    assert run("card", FULL, "-o", mine)[0] == 2
    assert run("card", FULL, "--sums", mine)[0] == 2
    assert mine.read_text() == "# mine\n"


def test_speed_is_of_the_bench(run: Any, tmp_path: Path) -> None:
    """In the lines that mtp-bench prints; a verification is no bench."""
    data, bench = made.verification(), tmp_path / "bench.json"
    bench.write_text(json.dumps({key: data[key] for key in ("schema", "version", "path", "ok", "failures", "decoder")}))
    code, text, _ = run("card", FULL, "--bench", bench)
    assert code == 0
    assert text.count("pred=  10 draft=") == 3
    assert "Speed was not measured" not in text
    bench.write_text(json.dumps(data))
    assert run("card", FULL, "--bench", bench)[0] == 3
