"""A head out of a large release: its bytes and next to nothing else, through a line that is cut again and again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mtptools.hub import mirrors
from tests.cli.conftest import Run, run  # noqa: F401
from tests.conftest import FIXTURES
from tests.hub.releases import MB, release
from tests.hub.server import Hub

CONFIG = FIXTURES / "qwen35" / "hf" / "config.json"


def test_a_head_and_one_percent(run: Run, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Two gigabytes, a head of 40 MB, a cut every megabyte. benchmarks/hub.py does it with 20 GB."""
    monkeypatch.setattr(mirrors, "SAFETENSORS_HEAD", 8192)  # as much smaller as the head
    made = release(json.loads(CONFIG.read_bytes()), gigabytes=2, head_megabytes=40)
    assert sum(content.size for content in made.files.values()) > 1900 * MB
    commit = hub.add("user/repo", made.files)
    hub.faults.cut_every = MB
    code, out, err = run("extract", "user/repo", "-o", tmp_path / "none", "--dry-run", "--json")
    assert code == 0, err
    assert json.loads(out)["fetch"] == {"nbytes": made.nbytes, "ranges": 3, "files": 3}
    code, _, err = run("extract", "user/repo", "-o", tmp_path / "head")
    assert code == 0, err
    assert hub.sent < 1.01 * made.nbytes
    assert len(hub.asked("cdn")) > 50
    assert made.same(tmp_path / "head" / "model.safetensors")
    receipt = json.loads((tmp_path / "head" / "mtptools-receipt.json").read_bytes())
    assert receipt["sources"][0]["origin"]["commit"] == commit
    assert receipt["sources"][0]["name"] == "repo"
    assert not re.search(str(tmp_path / "cache"), json.dumps(receipt)), "no path of the cache"
