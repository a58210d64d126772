"""The loopback hub as a fixture. From another folder: `from tests.hub.conftest import hub  # noqa: F401`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mtptools.hub import mirrors, transfer
from mtptools.tensors import PARTIAL
from tests.hub.server import Hub, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of its own, which HF_ENDPOINT names, with empty caches and no token; no pause before another try."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MTPTOOLS_CONNECTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MTPTOOLS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "hf" / "tokens"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transfer, "PAUSES", (0.01,))
    close_session()  # of an earlier server: its connections are dead
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server
    close_session()
    PARTIAL.clear()
    mirrors._SHOWN.clear()
