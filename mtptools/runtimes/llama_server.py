"""Starting llama.cpp: the one in the xllamacpp wheel, or a llama-server binary, with MTP or without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from mtptools.errors import MissingExtraError, SystemFailure
from mtptools.runtimes.child import Child, started

__all__ = ["Start", "embedded", "embedded_version", "server"]


@dataclass(frozen=True)
class Start:
    """model: a GGUF (the first shard);  draft: a GGUF with the head alone, None: the model's own
    k: drafts a step, 0 without MTP;  context: tokens of prompt and answer;  threads: of the CPU, None: its choice
    gpu_layers: of the wheel's that go to a GPU, -1: its choice;  extra: further flags of a llama-server, -ngl too
    timeout: seconds to be ready
    """

    model: Path
    draft: Path | None
    k: int
    context: int
    threads: int | None
    gpu_layers: int
    extra: tuple[str, ...]
    timeout: float


def embedded_version() -> str:
    """ "build 11549 (xllamacpp 2026.10.11549)". Raises MissingExtraError."""
    if find_spec("xllamacpp") is None:
        raise MissingExtraError("xllamacpp", "llama", "--runtime llama.cpp")
    try:
        wheel = version("xllamacpp")
    except PackageNotFoundError:
        return "?"
    return f"build {wheel.rpartition('.')[2]} (xllamacpp {wheel})"


@contextlib.contextmanager
def embedded(start: Start) -> Iterator[tuple[Child, str]]:
    """The wheel's server and its address. Raises what `started` raises, and MissingExtraError."""
    told = {
        "model": str(start.model),
        "draft": None if start.draft is None else str(start.draft),
        "k": start.k,
        "context": start.context,
        "threads": start.threads,
        "gpu_layers": start.gpu_layers,
    }
    what = f"llama.cpp {embedded_version()}"
    line = json.dumps(told).encode() + b"\n"

    def command(folder: Path) -> list[str]:
        return [sys.executable, "-m", "mtptools.runtimes.embedded", str(folder / "address")]

    with started(command, what, start.model, _announced, start.timeout, stdin=line) as running:
        yield running


def _announced(folder: Path) -> str | None:
    address = folder / "address"
    return address.read_text(encoding="utf-8") if address.is_file() else None


@contextlib.contextmanager
def server(binary: str, start: Start) -> Iterator[tuple[Child, str]]:
    """A llama-server and its address. Raises what `started` raises."""
    path = _binary(binary)
    port = _free_port()
    command = [path, *flags(start), "--host", "127.0.0.1", "--port", str(port), *start.extra]
    address = f"http://127.0.0.1:{port}"

    def ready(_: Path) -> str | None:
        return address if _healthy(address) else None

    with started(lambda _: command, path, start.model, ready, start.timeout) as running:
        yield running


def flags(start: Start) -> list[str]:
    """What a llama-server is told of a start."""
    out = ["-m", str(start.model), "-c", str(start.context), "-np", "1", "--metrics", "--no-warmup"]
    if start.threads:
        out += ["-t", str(start.threads)]
    if start.k:
        out += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(start.k)]
        if start.draft is not None:
            out += ["-md", str(start.draft)]
    return out


def _binary(given: str) -> str:
    """Raises SystemFailure: not there, or nothing that can be run."""
    found = shutil.which(given)
    if found is not None:
        return found
    path = Path(given)
    if path.is_dir():
        what, hint = "a folder", f"--runtime {path / 'llama-server'}"
    elif path.exists():
        what, hint = "it cannot be executed", f"chmod +x {given}"
    else:
        what, hint = "no such program", "--runtime llama.cpp is the one in the wheel: pip install 'mtptools[llama]'"
    raise SystemFailure(what, where=given, hint=hint)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _healthy(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{address}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError, ValueError):
        return False


def first_shard(files: Sequence[Path]) -> Path:
    """The file llama.cpp is given: of a split model the first, by its number."""
    return min(files, key=lambda path: (int(m[1]) if (m := re.search(r"-(\d{5})-of-\d{5}", path.name)) else 0, path))


def environment_key(name: str | None) -> str | None:
    """The key that an environment variable holds. Raises SystemFailure for one that is not set."""
    if name is None:
        return None
    if not os.environ.get(name):
        raise SystemFailure(
            f"the environment variable {name} is not set", where="--api-key-env", hint=f"export {name}=…"
        )
    return os.environ[name]
