"""Shell completion: the scripts, and what they are answered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtptools.cli.main import VERBS

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def complete(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The answers of a shell's protocol to words, the last of which is being typed: [kind, value, help] of each."""

    def call(*words: str, shell: str = "bash") -> list[list[str]]:
        monkeypatch.setenv("COMP_WORDS", " ".join(("mtptools", *words)))
        monkeypatch.setenv("COMP_CWORD", words[-1] if shell == "fish" else str(len(words)))
        code, out, err = run("completion", shell, "--answer")
        assert (code, err) == (0, "")
        return [line.split("\t") for line in out.splitlines()]

    return call


def values(answers: list[list[str]]) -> list[str]:
    return [answer[1] for answer in answers]


@pytest.mark.parametrize("shell", SHELLS)
def test_verbs_options_choices_paths(complete: Any, shell: str) -> None:
    assert set(values(complete("", shell=shell))) >= set(VERBS)
    assert values(complete("gra", shell=shell)) == ["graft"]
    assert {"--k", "--tokens", "--against"} <= set(values(complete("verify", "--", shell=shell)))
    assert values(complete("verify", "--min-a", shell=shell)) == ["--min-acceptance"]
    assert values(complete("convert", "x", "--to", "g", shell=shell)) == ["gguf"]
    for words in (("inspect", "mod"), ("graft", "a.gguf", "mod"), ("verify", "a.gguf", "--against", "mod")):
        assert complete(*words, shell=shell)[0][0] == "checkpoint", words
    assert complete("verify", "a.gguf", "--prompts", "mod", shell=shell)[0][0] == "file"


def test_answers_are_whole_lines(complete: Any) -> None:
    """Three parts each, and help without line breaks: what the scripts split at."""
    for answer in complete("verify", "--"):
        assert len(answer) == 3
        assert answer[0] == "plain"
        assert answer[2]


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_of_their_shells(run: Any, shell: str, tmp_path: Path) -> None:
    code, script, _ = run("completion", shell)
    assert code == 0
    assert f"completion {shell} --answer" in script
    assert "%" + "(" not in script
    assert json.loads(run("completion", shell, "--json")[1])["script"] == script
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed: its script was not parsed")
    (tmp_path / "script").write_text(script, encoding="utf-8")
    subprocess.run([path, "-n", tmp_path / "script"], check=True)


def test_in_bash_itself(run: Any, tmp_path: Path) -> None:
    """Model files and folders, then what the answers say."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    for name in ("model.gguf", "model-00001-of-2.safetensors", "model.txt"):
        (tmp_path / name).touch()
    (tmp_path / "models").mkdir()
    tool = tmp_path / "mtptools"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m mtptools "$@"\n', encoding="utf-8")
    tool.chmod(0o755)
    script = run("completion", "bash")[1]
    # compopt is for a completion that readline started: here nobody did.
    ask = f"""cd {tmp_path}; compopt() {{ :; }}; {script}
    try() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mtptools_completion {tool}; echo "${{COMPREPLY[*]}}"; }}
    try mtptools inspect mod; try mtptools verify --min-a"""
    done = subprocess.run([bash, "-c", ask], capture_output=True, text=True, check=True)
    found = [set(line.split()) for line in done.stdout.splitlines()]
    assert found == [{"models", "model.gguf", "model-00001-of-2.safetensors"}, {"--min-acceptance"}]


def test_answers_without_torch() -> None:
    code = "import sys\nfrom mtptools.cli.main import main\ntry: main(['completion', 'bash', '--answer'])\nfinally: "
    words = {"COMP_WORDS": "mtptools verify --", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code + "assert not {'torch', 'httpx', 'huggingface_hub'} & set(sys.modules)"],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--parity" in done.stdout


def test_unknown_shell(run: Any) -> None:
    assert run("completion", "tcsh")[0] == 2
