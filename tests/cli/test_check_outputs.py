"""Annotations and step summaries of check, with names and findings that try to be more than text."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from mtptools.errors import CorruptError
from mtptools.report.annotations import workflow_commands
from mtptools.report.escape import visible
from mtptools.report.gate import Checked, Gate, error_record
from mtptools.report.junit import junit
from mtptools.report.summary import summary
from tests.bad_artifacts import BAD, FULL
from tests.cli.conftest import Run
from tests.junit_rules import read

HOSTILE = 'a\n::error::b\r%,:\x1b[31m\x00\ud800\u202e<script>|`x`]]>&"\ufffe.gguf'


def verification(what: str, **more: Any) -> dict[str, Any]:
    """As `verify --json` has it, with one finding."""
    finding = {"check": "head-norms", "severity": "error", "what": what, "evidence": what, "fix": what}
    static = {"ok": False, "head": "", "findings": [finding], "passed": ["index"], "skipped": ["draft-map"]}
    data = {"schema": 1, "ok": False, "failures": [f"L1 static: [head-norms] {what}"], "not_run": None, "lineage": []}
    return data | {"static": static, "decoder": None, "stream": None, "baseline": None} | more


@pytest.fixture
def hostile() -> Gate:
    damaged = error_record(CorruptError(HOSTILE, where=HOSTILE, hint=HOSTILE))
    return Gate([Checked(HOSTILE, 1, 0.5, verification(HOSTILE)), Checked(f"/x/{HOSTILE}", 3, 0.1, error=damaged)])


def test_text_is_one_line_each(hostile: Gate) -> None:
    """Nothing in a name starts a line of its own: a runner takes `::error` there for a command."""
    text = hostile.render(verbose=True)
    assert not any(line.startswith("::") for line in text.splitlines())
    assert text.isprintable() or all(c.isprintable() or c == "\n" for c in text)


def test_junit_of_anything(hostile: Gate) -> None:
    text = junit(hostile, now=datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc))
    first, second = read(text)
    assert first.attrib["timestamp"] == "2026-01-02T03:04:05"
    assert first.attrib["name"] == visible(HOSTILE.rsplit("/", 1)[-1])
    assert [child.tag for case in second.findall("testcase") for child in case] == ["error"]


def test_junit_times() -> None:
    """Where the verification states what a level took, it stands at the level's first case."""
    (suite,) = read(junit(Gate([Checked("x", 1, 9.0, verification("w", seconds={"L1": 2.5}))])))
    times = [
        float(case.attrib["time"]) for case in suite.findall("testcase") if case.attrib["classname"] == "L1.static"
    ]
    assert times == [2.5, 0.0, 0.0]


def test_annotations_escape(hostile: Gate) -> None:
    lines = workflow_commands(hostile, {"GITHUB_WORKSPACE": "/x"})
    assert len(lines) == 2
    for line in lines:
        assert line.isprintable()
        _, properties, message = line.split("::", 2)
        assert properties.startswith("error file=")
        assert properties.count(",") == 1, "between file and title"
        assert "%25%2C%3A" in properties
        assert message.count("%0A") == 1, "before the fix: line breaks of a name are spelled"


def test_annotation_as_github_reads_it() -> None:
    gate = Gate([Checked("/w/sub/x, y.gguf", 1, 0.0, verification("100% off: a"))])
    (line,) = workflow_commands(gate, {"GITHUB_WORKSPACE": "/w"})
    assert line == ("::error file=sub/x%2C y.gguf,title=x%2C y.gguf%3A wrong norm::100%25 off: a%0Afix: 100%25 off: a")
    unknown = verification("x", failures=[], not_run="L2 to L4: no decoder")
    unknown["static"]["findings"] = []
    (line,) = workflow_commands(Gate([Checked("hf://u/r/x.gguf", 8, 0.0, unknown)]), {"GITHUB_WORKSPACE": "/w"})
    assert line == "::warning file=hf%3A//u/r/x.gguf,title=x.gguf%3A not checked::L2 to L4: no decoder"


def test_summary_of_anything(hostile: Gate) -> None:
    text = summary(hostile)
    assert "<script>" not in text
    assert text.startswith("## ❌ ERROR: 2 of 2: ")
    rows = [line for line in text.splitlines() if line.startswith("| ❌")]
    assert [row.replace("\\|", "").count("|") for row in rows] == [10, 10]


def test_in_a_workflow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = BAD["declared but missing"](tmp_path / "bad.gguf")
    place = tmp_path / "summary.md"
    place.write_text("before\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place))
    code, out, err = run("check", bad, "--static", "--json")
    assert code == 1
    assert "::" not in out, "standard output is data"
    assert "::error file=bad.gguf,title=bad.gguf%3A declared but missing::qwen35.nextn_predict_layers = 1" in err
    text = place.read_text(encoding="utf-8")
    assert text.startswith("before\n## ❌ FAIL: declared but missing: ")
    assert "| ❌ FAIL | bad.gguf | not run" not in text


def test_a_report_that_cannot_be_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs neither the verdict nor the other reports, and standard output stays one JSON object."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "none" / "summary.md"))
    code, out, err = run("check", FULL, "--static", "--json", "--junit", tmp_path / "j.xml")
    assert code == 7
    assert json.loads(out)["ok"]
    assert "summary.md: cannot write: " in err
    assert len(read((tmp_path / "j.xml").read_text())) == 1
    assert run("check", BAD["wrong block_count"](tmp_path / "bad.gguf"), "--static", "-q")[0] == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that nobody can write to")
def test_found_out_before_the_work(run: Run) -> None:
    """Hours of decoding do not end in a folder that is not ours."""
    code, out, err = run("check", FULL, "--static", "--junit", "/proc/check.xml")
    assert (code, out) == (7, "")
    assert "/proc/check.xml: cannot write: " in err


def test_what_is_not_replaced(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a report of ours is: no baseline, no other XML, no device, and no other report of the same run."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    base, build, pipe = tmp_path / "donor.json", tmp_path / "build.xml", tmp_path / "pipe"
    base.write_text(run("verify", FULL, "--json")[1])
    build.write_text('<?xml version="1.0" encoding="UTF-8"?>\n<project/>')
    os.mkfifo(pipe)  # as /dev/null: replaced, it would be a file from then on
    ours = ("--junit", tmp_path / "j.xml", "--report", tmp_path / "r.json")
    assert [run("check", FULL, "--static", "-q", *ours)[0] for _ in range(2)] == [0, 0]
    one = tmp_path / "one"
    for rest, says in (
        (("--report", base), "no report"),
        (("--junit", build), "no report"),
        (("--junit", pipe), "is no file"),
        (("--junit", one, "--report", one), "two reports, one file"),
        (("--junit", one, "--html", tmp_path / "x" / ".." / "one"), "two reports, one file"),
    ):
        before = base.read_bytes(), build.read_bytes()
        code, out, err = run("check", FULL, "--static", *rest)
        assert (code, out) == (2, ""), rest
        assert says in err
        assert (base.read_bytes(), build.read_bytes(), one.exists(), pipe.is_fifo()) == (*before, False, True)


def test_not_in_a_workflow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert run("check", BAD["truncated"](tmp_path / "bad.gguf"), "-q") == (3, "", "")
