"""The command line: exit codes, streams, and what a user reads when something is wrong."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtptools.cli.main import VERBS
from mtptools.cli.verifying import parse_ks
from mtptools.errors import UsageError
from mtptools.threshold import Threshold
from tests import rewrite


def test_help_everywhere(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for verb in VERBS:
        assert verb in out
        code, text, _ = run(verb, "--help")
        assert code == 0
        assert "Examples:" in text
        assert f"mtptools {verb}" in text


def test_help_is_fast() -> None:
    """Under 150 ms of process time; the best of five, so that a busy machine does not fail it."""
    best = 9.0
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "mtptools", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert best < 0.15


def test_inspect(run, full: Path, hf: Path, trunk_q8: Path) -> None:
    for path in (full, hf):
        code, out, err = run("inspect", path)
        assert (code, err) == (0, "")
        assert "nextn.eh_proj.weight" in out
        code, out, _ = run("inspect", path, "--json")
        data = json.loads(out)
        assert data["declared"]["depth"] == 1
        assert sum(data["sizes"].values()) == data["bytes"]["tensors"]
    assert "no head" in run("inspect", trunk_q8)[1]


def test_the_whole_way(run, full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    code, text, _ = run("graft", trunk_q8, full, "-o", out, "--dry-run")
    assert code == 0
    assert "dry run" in text
    assert not out.exists()
    assert run("graft", trunk_q8, full, "-o", out)[0] == 0
    code, _, err = run("graft", trunk_q8, full, "-o", out)
    assert code == 6
    assert "--force" in err
    assert run("graft", trunk_q8, full, "-o", out, "--force", "--json")[0] == 0
    assert run("validate", out)[0] == 0
    assert run("verify", out, "--trunk", trunk_q8, "--against", full)[0] == 0
    assert run("diff", out, full)[0] == 1
    assert run("diff", out, out)[0] == 0
    assert run("strip", out, "-o", tmp_path / "trunk.gguf", "--verify")[0] == 0
    code, text, _ = run("diff", trunk_q8, tmp_path / "trunk.gguf")
    assert (code, text.splitlines()[-1]) == (0, "equal")
    assert run("extract", out, "-o", tmp_path / "head.gguf", "--bare", "-q")[1] == ""


def test_declared_and_missing_exits_1(run, full: Path, tmp_path: Path) -> None:
    from mtptools.checkpoint import open_checkpoint
    from mtptools.head import head_names

    path = rewrite.gguf(full, tmp_path / "b.gguf", drop=head_names(open_checkpoint(full)))
    code, out, _ = run("validate", path)
    assert code == 1
    assert "declared and missing" in out.splitlines()[0]
    assert run("verify", path)[0] == 1


def test_usage(run, full: Path, tmp_path: Path) -> None:
    assert run("graft", full)[0] == 2
    assert run("no-such-verb")[0] == 2
    assert run("verify", full, "--k", "0", "--parity")[0] == 2
    assert run("verify", full, "--min-acceptance", "0.5")[0] == 2
    assert run("verify", full, "--parity", "--min-acceptance", "90%")[0] == 2
    code, _, err = run("strip", full, "-o", full, "--force")
    assert code == 2
    assert "hint:" in err


def test_bad_input(run, full: Path, hf: Path, trunk_q8: Path, tmp_path: Path) -> None:
    for name, data in {"a.gguf": b"", "b.gguf": b"GGUF", "c.safetensors": b"12345678", "d.bin": b"x"}.items():
        (tmp_path / name).write_bytes(data)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(full.read_bytes()[:-5000])
    folder = tmp_path / "folder"
    shutil.copytree(hf, folder)
    (folder / "config.json").write_text("{")
    index = tmp_path / "index"
    index.mkdir()
    (index / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "missing.safetensors"}}))
    split = tmp_path / "x-00001-of-00002.gguf"
    shutil.copyfile(full, split)
    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    for path in [*tmp_path.glob("?.*"), cut, folder, index, split, evil, tmp_path / "nothing", tmp_path]:
        for verb in (["inspect", path], ["validate", path], ["graft", trunk_q8, path, "-o", tmp_path / "out.gguf"]):
            code, out, err = run(*verb)
            assert (code, out) == (3, ""), (verb, err)
            assert err.startswith("error: ")
    assert not (tmp_path / "out.gguf").exists()


def test_unknown_architecture(run, full: Path, tmp_path: Path) -> None:
    from mtptools.containers.gguf_values import string_value

    path = rewrite.gguf(full, tmp_path / "u.gguf", metadata={"general.architecture": string_value("gpt5")})
    assert run("inspect", path)[0] == 0
    code, _, err = run("validate", path)
    assert code == 3
    assert "gpt5" in err
    assert "mtptools families" in err


def test_incompatible(run, full: Path, tmp_path: Path, family: str) -> None:
    from tests.conftest import FAMILIES, FIXTURES

    other = next(name for name in FAMILIES if name != family)
    trunk = FIXTURES / other / "gguf" / "trunk-Q8_0.gguf"
    code, _, err = run("graft", trunk, full, "-o", tmp_path / "o.gguf")
    assert code == 4
    assert "[family]" in err
    assert err.count("  - ") > 1


def test_errors_as_json(run, full: Path, tmp_path: Path) -> None:
    code, out, err = run("strip", tmp_path / "nothing", "-o", tmp_path / "o", "--json")
    record = json.loads(out)
    assert (code, record["exit_code"], record["error"]) == (3, 3, "NotACheckpointError")
    assert "error: " in err
    assert run("inspect", "")[0] == 2
    assert run("verify", full, "--k", "2")[0] == 2


def test_a_reader_that_goes_away(full: Path, tmp_path: Path) -> None:
    """`mtptools strip … | true` wrote its file: that is success."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} -m mtptools strip '{full}' -o o.gguf --json | true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (tmp_path / "o.gguf").is_file()
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("broken", ["stdout", "elsewhere"])
def test_text_that_nobody_reads_any_more(run, full: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """`generate … | head`: what is left to write is not, and nothing has failed. A connection that breaks has."""
    pytest.importorskip("torch", reason="needs the decoder: pip install '.[decoder]'")

    def gone(*arguments: object, **named: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    where = "mtptools.cli.output.click.echo" if broken == "stdout" else "mtptools.decoder.speculate.decode_plain"
    monkeypatch.setattr(where, gone)
    code, _, err = run("generate", full, "-p", "The", "--tokens", "4", *(["-q"] if broken == "stdout" else []))
    assert (code, "error: Broken pipe" in err) == ((0, False) if broken == "stdout" else (7, True))


def test_codec_error(run, full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    code, _, err = run("graft", trunk_q8, full, "-o", tmp_path / "o.gguf", "--head-type", "TQ1_0")
    assert code == 5
    assert "Q8_0" in err


def test_sigterm_cleans_up(tmp_path: Path) -> None:
    """A process told to stop half-way removes what it had begun."""
    from tests.conftest import FIXTURES

    source = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    code = (
        "import time, mtptools.writer as w; from mtptools.cli.main import main\n"
        "slow = w._write_tensor\n"
        "def wait(*a):\n    slow(*a); print('.', flush=True); time.sleep(0.2)\n"
        "w._write_tensor = wait\n"
        f"main(['strip', {str(source)!r}, '-o', {str(tmp_path / 'o.gguf')!r}])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert os.listdir(tmp_path)  # noqa: PTH208
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    time.sleep(0.05)
    assert process.returncode == 130
    assert "nothing half-written" in err
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_parsers() -> None:
    assert parse_ks("3,1,2,1") == (1, 2, 3)
    for text in ("", "x", "0", "1,,2", "65"):
        with pytest.raises(UsageError):
            parse_ks(text)
    assert Threshold.parse("0.6").absolute == 0.6
    assert Threshold.parse("95%").relative == 0.95
    for text in ("1.5", "-1", "101%", "high"):
        with pytest.raises(UsageError):
            Threshold.parse(text)
