from __future__ import annotations

from collections.abc import Callable

import pytest

from mtptools.cli.main import main
from mtptools.prompts import read_prompts

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def few_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two built-in prompts, for what decodes with a verb's defaults: --verify has no options of its own."""
    monkeypatch.setattr("mtptools.cli.verifying.read_prompts", lambda path: read_prompts(path)[:2])


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process: (exit code, stdout, stderr). A traceback is never an answer."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err, err
        return int(stopped.value.code or 0), out, err

    return call
