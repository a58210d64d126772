"""Verbs on a repo of a (loopback) hub: they write what they write of the files themselves, and fetch no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.head import head_names
from tests.cli.conftest import Run
from tests.conftest import FIXTURES
from tests.hub.conftest import hub as hub  # a fixture
from tests.hub.contents import Bytes
from tests.hub.server import Hub

HF = FIXTURES / "qwen35" / "hf"
GGUF = FIXTURES / "qwen35" / "gguf"


def publish(hub: Hub, name: str, files: list[Path]) -> str:
    """A repo with these files; returns its commit."""
    return hub.add(name, {path.name: Bytes(path.read_bytes()) for path in files})


@pytest.fixture
def folder(hub: Hub) -> str:
    return publish(hub, "lab/Tiny", [path for path in HF.iterdir() if path.is_file()])


@pytest.fixture
def ggufs(hub: Hub) -> str:
    return publish(hub, "lab/Tiny-GGUF", [GGUF / "model-BF16.gguf", GGUF / "trunk-Q8_0.gguf"])


def test_inspect_a_folder(run: Run, hub: Hub, folder: str) -> None:
    there = json.loads(run("inspect", "lab/Tiny", "--json")[1])
    here = json.loads(run("inspect", HF, "--json")[1])
    assert there["head"] == here["head"]
    weights = sum(path.stat().st_size for path in HF.glob("*.safetensors"))
    assert hub.sent < weights, "headers and what stands beside them"


def test_a_head_by_range(run: Run, hub: Hub, ggufs: str, tmp_path: Path) -> None:
    """The sidecar is the one that is made of the whole file, and little more than the head came."""
    full = GGUF / "model-BF16.gguf"
    assert run("extract", "hf://lab/Tiny-GGUF/model-BF16.gguf", "-o", tmp_path / "there.gguf", "--bare")[0] == 0
    assert run("extract", full, "-o", tmp_path / "here.gguf", "--bare")[0] == 0
    one, two = open_checkpoint(tmp_path / "there.gguf"), open_checkpoint(tmp_path / "here.gguf")
    assert {name: one[name].read() for name in one} == {name: two[name].read() for name in two}
    ckpt = open_checkpoint(full)
    head = sum(ckpt[name].nbytes for name in head_names(ckpt))
    assert hub.sent < head + 1.05 * (1 << 20) + 64_000, "one megabyte is asked for at once, for the header"
    source = json.loads((tmp_path / "there.gguf.receipt.json").read_text())["sources"][0]
    assert source["origin"]["commit"] == ggufs
    assert source["origin"]["repo"] == "lab/Tiny-GGUF"


def test_dry_run_says_what_is_to_fetch(run: Run, hub: Hub, ggufs: str, tmp_path: Path) -> None:
    code, text, _ = run("strip", "lab/Tiny-GGUF:BF16", "-o", tmp_path / "o.gguf", "--dry-run")
    assert code == 0
    assert "to fetch: " in text
    before = hub.sent
    data = json.loads(run("strip", "lab/Tiny-GGUF:BF16", "-o", tmp_path / "o.gguf", "--dry-run", "--json")[1])
    assert 0 < data["fetch"]["nbytes"] < (GGUF / "model-BF16.gguf").stat().st_size
    assert hub.sent - before < 4096, "headers are here already"


def test_no_room_is_said_before_anything_is_fetched(
    run: Run, hub: Hub, ggufs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the output alone, and for the output and what is kept of the repo on the same disk."""
    assert run("inspect", "lab/Tiny-GGUF:BF16", "-q")[0] == 0
    before = hub.sent
    written = json.loads(run("strip", "lab/Tiny-GGUF:BF16", "-o", tmp_path / "o.gguf", "--dry-run", "--json")[1])[
        "bytes"
    ]
    for room in (written // 2, written * 3 // 2):
        monkeypatch.setattr("shutil.disk_usage", lambda path, room=room: SimpleNamespace(free=room))
        code, _, err = run("strip", "lab/Tiny-GGUF:BF16", "-o", tmp_path / "o.gguf")
        assert code == 7, err
        assert hub.sent - before < 4096


def test_the_current_folder_has_a_name(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HF)
    assert run("verify", ".")[1].splitlines()[0] == "verify hf"


def test_graft_of_two_repos_decodes(run: Run, hub: Hub, folder: str, ggufs: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    assert run("graft", "hf://lab/Tiny-GGUF/trunk-Q8_0.gguf", "lab/Tiny", "-o", out)[0] == 0
    again = tmp_path / "again.gguf"
    assert run("graft", GGUF / "trunk-Q8_0.gguf", HF, "-o", again)[0] == 0
    one, two = open_checkpoint(out), open_checkpoint(again)
    assert {name: one[name].read() for name in one} == {name: two[name].read() for name in two}
    code, text, _ = run("verify", "lab/Tiny-GGUF:BF16", "--parity", "--k", "1", "--limit", "1", "--tokens", "8")
    assert "L2 parity      pass" in text, text
    assert code == 0


def test_one_pass_over_a_repo(run: Run, hub: Hub, folder: str) -> None:
    asked = ("--stream", "--positions", "48", "--k", "1", "--json")
    there, here = (json.loads(run("verify", path, *asked)[1]) for path in ("lab/Tiny", HF))
    assert there["stream"]["rates"] == here["stream"]["rates"] is not None


def test_nothing_is_told_that_was_not_asked(hub: Hub, folder: str, tmp_path: Path) -> None:
    """In a process of its own: no list of agents is fetched, and no version of torch is sent."""
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "AI_AGENT": "somebody"}
    subprocess.run([sys.executable, "-m", "mtptools", "inspect", "lab/Tiny", "-q"], env=environment, check=True)
    assert hub.asked()
    assert {request.path.split("/")[1] for request in hub.asked("hub")} <= {"api", "lab"}
    assert not hub.asked(path="agent")


def test_errors_name_the_address_and_not_the_cache(run: Run, hub: Hub, tmp_path: Path) -> None:
    damaged = (GGUF / "model-BF16.gguf").read_bytes()[:200_000]
    hub.add("lab/Broken", {"m.gguf": Bytes(damaged)})
    code, _, err = run("inspect", "lab/Broken")
    assert code == 3
    assert "hf://lab/Broken/m.gguf" in err
    assert str(tmp_path) not in err


def test_a_mistyped_path_asks_nobody(run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    code, _, err = run("inspect", "models/Tiny")
    assert code == 3
    assert "hf://models/Tiny" in err
    assert run("inspect", "models/tiny.gguf")[0] == 3
    assert not hub.asked()


def test_parts_of_a_file_are_no_file(run: Run, hub: Hub, ggufs: str, tmp_path: Path) -> None:
    """A mirror's path, typed by hand in another process: its holes would pass for weights."""
    from mtptools.tensors import PARTIAL

    assert run("inspect", "lab/Tiny-GGUF:BF16")[0] == 0
    (path,) = (path for path in PARTIAL if path.name == "model-BF16.gguf")
    PARTIAL.clear()
    (tmp_path / "link.gguf").symlink_to(path)
    for typed in (path, tmp_path / "link.gguf", path.parent):
        code, _, err = run("extract", typed, "-o", tmp_path / "o.gguf")
        assert code == 3
        assert "only parts of " in err
