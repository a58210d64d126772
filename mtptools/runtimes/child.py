"""A server in a process of its own: started, waited for, ended for sure, its last words kept."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mtptools.errors import InputError, SystemFailure

__all__ = ["OLDEST", "Child", "started"]

OLDEST: Final = "b9180, of May 2026"
"""The first build of llama.cpp with `--spec-type draft-mtp` (ggml-org/llama.cpp#22673)."""

GRACE: Final = 5.0  # seconds to end by itself before it is killed
ENDING: Final = 0.5
POLL: Final = 0.05
LAST: Final = 40  # lines of its log that are looked at

_REASON: Final = re.compile(
    r"error loading model|failed to load|wrong number of tensors|wrong shape|missing tensor|tensor '.*' not found|"
    r"unknown model architecture|wrong array length|GGML_ASSERT|failed to create MTP context|unknown pre-tokenizer|"
    r"not found|corrupted",
    re.IGNORECASE,
)
"""Lines in which llama.cpp says what is wrong with a model."""
_NO_MTP: Final = re.compile(r"(invalid|unknown).*(spec-type|speculative|draft-mtp|spec-draft)|has no attribute.*MTP")
_IDLE: Final = re.compile(r"no API key is set|has unused tensor|yarn_attn_factor")
_STAMP: Final = re.compile(r"^[\d.]+ [A-Z] ")


class Child:
    """what: how it is called in errors; log: the file with all it has said."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, what: str) -> None:
        self.process, self.log, self.what = process, log, what

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def ended_soon(self) -> bool:
        """A connection is cut a little before the process is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING)
        return self.ended

    def lines(self) -> list[str]:
        """Its last lines, without time stamps."""
        text = self.log.read_bytes()[-16384:].decode("utf-8", "replace")
        lines = [_STAMP.sub("", line).strip() for line in text.splitlines() if not _IDLE.search(line)]
        return [line for line in lines if line][-LAST:]

    def refusal(self, model: object) -> InputError | SystemFailure:
        """Why it ended before it served: a model that it does not run, a build without MTP, or what it said last."""
        lines = self.lines()
        if any(_NO_MTP.search(line) for line in lines):
            return SystemFailure(
                "this llama.cpp does not know MTP (draft-mtp)", where=self.what, hint=f"take build {OLDEST}, or later"
            )
        reasons = list(dict.fromkeys(line for line in lines if _REASON.search(line)))
        said = "; ".join(reasons[:2]) or "; ".join(lines[-3:]) or "no word"
        if reasons or self.process.returncode < 0:
            return InputError(
                f"llama.cpp does not run it ({_end(self.process.returncode)}): {said}",
                where=model,
                hint=f"mtptools validate {model}",
            )
        return SystemFailure(
            f"the server ended at once ({_end(self.process.returncode)}): {said}",
            where=self.what,
            hint="run it by hand to see more",
        )

    def death(self) -> SystemFailure:
        """That it ended while it worked."""
        said = "; ".join(self.lines()[-3:]) or "no word"
        code = self.process.returncode
        return SystemFailure(
            f"llama.cpp died while it decoded ({_end(code)}): {said}", where=self.what, hint="report it to llama.cpp"
        )

    def end(self) -> None:
        """Ask it to end, then kill it with all that it started."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        for how in (signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            if self.ended:
                break
            self._send(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE)
        if hasattr(os, "killpg"):
            self._send(signal.SIGKILL)  # what it left behind: a script may end before the server that it started

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


@contextlib.contextmanager
def started(
    command: Callable[[Path], Sequence[str]],
    what: str,
    model: object,
    ready: Callable[[Path], str | None],
    timeout: float,
    *,
    stdin: bytes | None = None,
) -> Iterator[tuple[Child, str]]:
    """A server at work, and its address; it is gone when the block is left, however that happens.

    command  given a folder that is the server's own
    ready    is asked again and again, with that folder, for the address; None: not yet
    timeout  seconds until it must be
    stdin    is written to it; the pipe stays open for as long as it runs

    Raises InputError (the model is refused) and SystemFailure (it does not start, or not in time).
    """
    with tempfile.TemporaryDirectory(prefix="mtptools-runtime-") as folder:
        place = Path(folder)
        log = place / "log"
        with log.open("wb") as words:
            try:
                process = subprocess.Popen(
                    command(place),
                    stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                    stdout=words,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # a debugger's words would bury its own
                )
            except OSError as error:
                raise SystemFailure(
                    f"cannot start it: {error.strerror or error}", where=what, hint="give the path of llama-server"
                ) from error
        child = Child(process, log, what)
        try:
            if stdin is not None and process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(stdin)
                    process.stdin.flush()
            yield child, _wait(child, place, model, ready, timeout)
        finally:
            child.end()


def _wait(child: Child, place: Path, model: object, ready: Callable[[Path], str | None], timeout: float) -> str:
    deadline = time.monotonic() + timeout
    while True:
        if child.ended:
            raise child.refusal(model)
        address = ready(place)
        if address is not None:
            return address
        if time.monotonic() > deadline:
            said = "; ".join(child.lines()[-2:]) or "no word"
            raise SystemFailure(
                f"not ready after {timeout:g} s: {said}",
                where=child.what,
                hint=f"--runtime-timeout {round(timeout * 2) or 1} if the model takes long to load",
            )
        time.sleep(POLL)


def _end(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
