"""verify --stream: what is a pass and what is not, and what it says while it reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.cli import streaming
from mtptools.head import head_names
from tests import rewrite
from tests.cli.test_stream import BRIEF, FULL, TRUNK, Run, refused, stream

TEXT = "The men who worked on the boats went out in the morning. " * 8


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_without_a_head(run: Run, text: Path) -> None:
    """A trunk alone: what it chooses is told, and that no head was measured."""
    code, out, err = run("verify", TRUNK, "--stream", "--text", text)
    assert code == 0, out + err
    assert "trunk          " in out
    assert "L3 acceptance" not in out
    verdict = next(line for line in out.splitlines() if line.startswith("PASS"))
    assert "no head" in verdict, "L3 and L4 are not claimed"


def test_a_head_that_is_missed(run: Run, text: Path, tmp_path: Path) -> None:
    """Declared and not there, or needed for what was asked: never a pass."""
    declared = rewrite.gguf(FULL, tmp_path / "declared.gguf", drop=tuple(head_names(open_checkpoint(FULL))))
    code, out, _ = run("verify", declared, "--stream", "--text", text)
    assert code == 1
    assert "a head is declared and missing" in out
    code, out, _ = run("verify", TRUNK, "--stream", "--text", text, "--min-acceptance", "0.3")
    assert code == 1
    assert "L3 acceptance: no head" in out
    for other, says in ((TRUNK, "none declared"), (declared, "declares 1 MTP layer(s)")):
        err = refused(run, FULL, "--stream", "--text", text, "--against", other, code=3)
        assert says in err
        assert f"mtptools graft {other}" in err
    code, data = stream(run, TRUNK, "--text", text, "--against", TRUNK)
    assert (code, data["stream"]["compared"]["flips"]) == (0, 0), "two trunks"


@pytest.mark.parametrize("asked", [(), ("--min-acceptance", "0.2")])
def test_too_little_to_judge(run: Run, asked: tuple[str, ...], text: Path, tmp_path: Path) -> None:
    """One draft is no acceptance, and no diagnosis, and what was not tried has no number."""
    html, markdown = tmp_path / "r.html", tmp_path / "r.md"
    code, out, _ = run("verify", FULL, "--stream", *asked, "--positions", "2", "--html", html, "--markdown", markdown)
    assert code == 1, out
    assert "FAIL" in out
    assert "L3 acceptance: 1 first draft(s) were tried, 16 are needed: read more text" in out
    assert "diagnosis" not in out
    assert "| 3 | 0 | – | – | – | – |" in out
    for page in (html.read_text(), markdown.read_text()):
        assert "–" in page
        assert "100.0%" not in page
        assert "Diagnosis" not in page
        assert "16 are needed" in page
        assert "dead" not in page.lower()
    code, data = stream(run, FULL, "--text", text, *asked, "--positions", "17")
    assert not any("are needed" in line for line in data["failures"])
    assert data["stream"]["rates"]["tried"][0] == 16


def test_lines_of_progress(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Where nobody looks at a terminal: one soon, one a minute; small files in units of their own."""
    now = [0.0]
    monkeypatch.setattr(streaming, "on_terminal", lambda: False)
    monkeypatch.setattr(streaming, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with streaming._progress(quiet=False) as say:
        for second in range(0, 140, 5):
            now[0] = float(second)
            say(second * 100_000, 14_000_000, f"layer {second}")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["layer 10", "layer 70", "layer 130"]
    assert lines[0] == "layer 10, 1.0 MB of 14.0 MB, 100.0 kB/s, 2 min 10 s left"


def test_a_family_without_decoder(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """L0 and L1 run; what was asked for was not, and the exit code says so."""
    monkeypatch.setattr("mtptools.decoder.FAMILIES", ("another",))
    code, out, _ = run("verify", FULL, *BRIEF)
    assert code == 8, out
    assert "NOT CHECKED" in out
    assert "PASS" not in out
    code, data = stream(run, FULL)
    assert (code, data["ok"], data["stream"]) == (8, False, None)
    assert "does not know" in data["not_run"]


@pytest.mark.parametrize("flag", ["--html", "--markdown"])
def test_some_layers_give_no_report(run: Run, flag: str, tmp_path: Path) -> None:
    some = ("--layers", "0:2", "--state", tmp_path / "state")
    assert "leave out --html" in refused(run, FULL, *BRIEF, *some, flag, tmp_path / "r")
    assert not (tmp_path / "state").exists()
