"""Servers of our own that do not come up, or do not go: said in one line, and gone at the end."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from mtptools.errors import InputError, MtpToolsError, SystemFailure
from mtptools.runtimes.child import OLDEST, started
from mtptools.runtimes.llama_server import Start, first_shard, flags, server

MODEL = Path("m.gguf")


def start(k: int = 3, draft: Path | None = None, timeout: float = 20.0) -> Start:
    return Start(MODEL, draft, k, 512, 1, 0, (), timeout)


def program(folder: Path, body: str) -> str:
    path = folder / "llama-server"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def refused(binary: str, timeout: float = 20.0) -> MtpToolsError:
    with pytest.raises(MtpToolsError) as failed, server(binary, start(timeout=timeout)):
        pass
    return failed.value


def test_no_program(tmp_path: Path) -> None:
    missing, plain = tmp_path / "none", tmp_path / "plain"
    plain.write_text("x")
    assert refused(str(missing)).what == "no such program"
    assert refused(str(plain)).hint == f"chmod +x {plain}"
    assert refused(str(tmp_path)).what == "a folder"
    bad = tmp_path / "bad"
    bad.write_bytes(b"\x7fELF nonsense")
    bad.chmod(0o755)
    error = refused(str(bad))
    assert (error.exit_code, error.what) == (7, "cannot start it: Exec format error")


@pytest.mark.parametrize(
    ("body", "kind", "what"),
    [
        ("sys.exit('no CUDA device')", SystemFailure, "ended at once (exit code 1): no CUDA device"),
        ("sys.exit(0)", SystemFailure, "ended at once (exit code 0): no word"),
        ("sys.exit('error: invalid argument: --spec-type')", SystemFailure, "does not know MTP"),
        ("sys.exit('error: unknown speculative decoding type draft-mtp')", SystemFailure, "does not know MTP"),
        (
            "sys.exit('0.1.2 E llama_model_load: error loading model: wrong number of tensors; expected 5, got 4')",
            InputError,
            "(exit code 1): llama_model_load: error loading model: wrong number of tensors; expected 5, got 4",
        ),
        ("os.abort()", InputError, "does not run it (SIGABRT)"),
    ],
)
def test_ends_at_start(body: str, kind: type[MtpToolsError], what: str, tmp_path: Path) -> None:
    error = refused(program(tmp_path, body))
    assert type(error) is kind
    assert what in str(error)
    if "MTP" in what:
        assert OLDEST in (error.hint or "")


def test_never_ready(tmp_path: Path) -> None:
    error = refused(program(tmp_path, "print('loading', flush=True); time.sleep(60)"), timeout=0.5)
    assert (error.exit_code, error.what) == (7, "not ready after 0.5 s: loading")
    assert "--runtime-timeout 1" in (error.hint or "")


def test_gone_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores being asked, and has a child: both are gone when the block is left, by an error too."""
    monkeypatch.setattr("mtptools.runtimes.child.GRACE", 0.3)
    body = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"child = os.fork()\nopen({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w').close()\ntime.sleep(60)"
    )
    command = [program(tmp_path, body)]

    def ready(_: Path) -> str | None:
        return "there" if len(list(tmp_path.glob("*.pid"))) == 2 else None

    def fail() -> None:
        with started(lambda _: command, "it", MODEL, ready, 20.0) as (child, address):
            assert address == "there"
            assert not child.ended
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    pids = [int(path.stem) for path in tmp_path.glob("*.pid")]
    deadline = time.monotonic() + 5
    while any(map(_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_alive, pids))


def test_what_a_script_left_behind(tmp_path: Path) -> None:
    """It starts a server and ends: that is refused, and the server is gone."""
    error = refused(
        program(
            tmp_path,
            f"if os.fork():\n    os._exit(0)\nopen({str(tmp_path)!r} + f'/{{os.getpid()}}.pid', 'w')\ntime.sleep(60)",
        )
    )
    assert "ended at once" in error.what
    time.sleep(0.2)
    assert not any(_alive(int(path.stem)) for path in tmp_path.glob("*.pid"))


def test_a_model_of_any_name(tmp_path: Path) -> None:
    """Braces in a name are no place for ours."""
    asked = Start(Path("{folder}/m {folder}.gguf"), None, 0, 512, 1, 0, (), 20.0)
    with pytest.raises(MtpToolsError) as failed, server(program(tmp_path, "sys.exit(sys.argv[2])"), asked):
        pass
    assert failed.value.what.endswith("(exit code 1): {folder}/m {folder}.gguf")


def _alive(pid: int) -> bool:
    """A process that ended and was not waited for (its parent is gone) is not alive."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_flags() -> None:
    told = " ".join(flags(start(2, Path("d.gguf"))))
    assert told.endswith("--spec-type draft-mtp --spec-draft-n-max 2 -md d.gguf")
    assert "-m m.gguf -c 512 -np 1 --metrics" in told
    assert "spec" not in " ".join(flags(start(0)))


def test_first_shard() -> None:
    files = [Path(f"/a/m-0000{n}-of-00003.gguf") for n in (3, 1, 2)]
    assert first_shard(files) == files[1]
