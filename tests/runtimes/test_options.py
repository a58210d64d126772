"""The options of --runtime: what goes together, and that nothing heavy is imported for them."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from mtptools.cli.runtime_options import Asked, runtime_options
from mtptools.errors import UsageError

seen: list[Asked | None] = []


@click.command()
@runtime_options
def verb(runtime: Asked | None) -> None:
    seen.append(runtime)


def call(*arguments: str) -> Asked | None:
    result = CliRunner().invoke(verb, list(arguments), standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0
    return seen.pop()


def test_values() -> None:
    assert call() is None
    assert call("--runtime", "llama.cpp") == Asked("llama.cpp")
    url = call("--runtime", "http://a", "--runtime-plain", "http://b", "--api-key-env", "KEY", "--runtime-timeout", "5")
    assert url == Asked("http://a", "http://b", runtime_timeout=5.0, api_key_env="KEY")
    assert url.is_address
    binary = call("--runtime", "/x/llama-server", "--runtime-arg=-ngl", "--runtime-arg=99")
    assert binary is not None
    assert binary.runtime_arg == ("-ngl", "99")
    assert not binary.is_address


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--runtime-plain", "http://b"], "--runtime-plain needs --runtime"),
        (["--runtime", ""], "no runtime is named"),
        (["--runtime", "llama.cpp", "--runtime-plain", "http://b"], "goes with an address"),
        (["--runtime", "llama.cpp", "--api-key-env", "K"], "goes with an address"),
        (["--runtime", "http://a", "--runtime-arg=-ngl"], "this runtime takes no flags"),
        (["--runtime", "llama.cpp", "--runtime-arg=-ngl"], "this runtime takes no flags"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        call(*arguments)


def test_nothing_heavy() -> None:
    code = (
        "import sys, mtptools.cli.runtime_options, mtptools.report.runtime; "
        "sys.exit(bool({'torch', 'xllamacpp', 'httpx', 'huggingface_hub'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
