"""verify --html and --markdown: written whole, beside what is printed; never over what is not a report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mtptools.cli.command_line import command_line
from mtptools.report.html.embedded import read_embedded
from tests.conftest import FIXTURES

TRUNK = FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf"


def test_reports_are_written(run: Any, tmp_path: Path) -> None:
    page, text = tmp_path / "report.html", tmp_path / "report.md"
    code, out, err = run("verify", TRUNK, "--html", page, "--markdown", text, "--json")
    assert code == 0, err
    data = json.loads(out)
    assert read_embedded(page.read_text(encoding="utf-8")) == data
    assert data["command"] == f"mtptools verify {TRUNK.name}", "no folder of this machine is published"
    assert "## PASS: `trunk-Q8_0.gguf`" in text.read_text(encoding="utf-8")
    assert run("verify", TRUNK, "--html", page, "--markdown", text, "-q")[0] == 0, "a report replaces a report"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("option", ["--html", "--markdown"])
def test_nothing_else_is_replaced(run: Any, option: str, tmp_path: Path) -> None:
    """Found out before anything is opened."""
    mine = tmp_path / "README.md"
    mine.write_text("# mine\n")
    code, _, err = run("verify", tmp_path / "no-such.gguf", option, mine)
    assert (code, mine.read_text()) == (2, "# mine\n")
    assert "no report stands there" in err
    assert "rm " not in err, "what stands there may be the model itself"
    assert run("verify", TRUNK, option, tmp_path)[0] == 2
    assert run("verify", TRUNK, option, tmp_path / "nowhere" / "x")[0] == 2


@pytest.mark.parametrize("option", ["--html", "--markdown", "-o", "--sums"])
def test_a_pipe_is_not_replaced(run: Any, option: str, tmp_path: Path) -> None:
    """Nor a device: root may, and a machine without /dev/null is no machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    os.write(held, (b"<!doctype html>" if option == "--html" else b"<!-- mtptools card -->") + b" " * 80)
    assert run("card" if option in ("-o", "--sums") else "verify", TRUNK, option, pipe)[0] == 2
    os.close(held)
    assert pipe.is_fifo()


def test_one_file_for_two(run: Any, tmp_path: Path) -> None:
    assert run("verify", TRUNK, "--html", tmp_path / "x", "--markdown", tmp_path / "x")[0] == 2


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        (["a b.gguf", "--k", "1,2", "--json"], "mtptools it 'a b.gguf' --k 1,2"),
        (["/home/me/m.gguf", "--against", "/home/me/d.gguf"], "mtptools it m.gguf --against d.gguf"),
        (
            ["hf://user/repo@main/m.gguf", "--no-fast", "--text", "/home/me/t"],
            "mtptools it hf://user/repo@main/m.gguf ",
        ),
        (["https://me:secret@example.org/m.gguf"], "mtptools it https://example.org/m.gguf"),
        (["https://example.org/m.gguf?X-Amz-Signature=secret"], "mtptools it https://example.org/m.gguf"),
        (["m.gguf", "--text", "code=/home/me/src"], "mtptools it m.gguf --text code=src"),
        (["m.gguf", "--html", "x.html", "--text", "a", "--text", "b"], "mtptools it m.gguf --text a --text b"),
    ],
)
def test_the_command_as_it_is_shown(typed: list[str], shown: str) -> None:
    """What gives the result, without where it went, and without folders or secrets."""

    @click.command()
    @click.argument("path", type=click.Path(path_type=Path))
    @click.option("--k", default="3")
    @click.option("--against", type=click.Path(path_type=Path))
    @click.option("--fast/--no-fast", default=True)
    @click.option("--text", multiple=True)
    @click.option("--html")
    @click.option("--json", "as_json", is_flag=True)
    def it(**_: Any) -> None:
        click.echo(command_line())

    told = CliRunner().invoke(it, typed).output.strip()
    assert told == shown if not shown.endswith(" ") else told == shown + "--no-fast --text t"
