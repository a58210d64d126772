"""Running `verify` once for each artifact of a gate."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator
from typing import Any, Final

import click

from mtptools.cli.check_asked import SHARED, Asked, Told
from mtptools.cli.verify import command as verify
from mtptools.errors import InputError, MtpToolsError, SystemFailure, UsageError, typed
from mtptools.report.gate import Checked, error_record

__all__ = ["check", "judge"]

_OPTIONS: Final = {str(option.name): option for option in SHARED}


def judge(asked: Asked) -> None:
    """Raises UsageError for a value that `verify` will refuse: found out before hours go to the artifacts before it."""
    from mtptools.cli.verifying import parse_ks
    from mtptools.threshold import Threshold

    with _named(asked):
        verify.make_context("verify", [*_typed(asked.told), "--", asked.path]).close()
        parse_ks(str(asked.told.get("k", "1")))
        Threshold.parse(str(asked.told["min_acceptance"]) if "min_acceptance" in asked.told else None)


@contextlib.contextmanager
def _named(asked: Asked) -> Iterator[None]:
    """What is wrong with a setting is said with the file it stands in."""
    try:
        yield
    except click.ClickException as error:
        raise UsageError(error.format_message(), where=asked.file, hint="mtptools check --help") from error
    except UsageError as error:
        raise UsageError(error.what, where=error.where or asked.file, hint=error.hint) from error


def check(asked: Asked) -> Checked:
    """Verify one artifact. An error of the artifact is a result; a UsageError is of the command line, and is raised."""
    start = time.perf_counter()
    try:
        with _named(asked):
            code, data = _verified(asked)
    except UsageError:
        raise
    except MtpToolsError as error:
        return Checked(asked.path, error.exit_code, time.perf_counter() - start, error=error_record(error))
    except (OSError, MemoryError) as error:
        what = getattr(error, "strerror", None) or str(error) or "out of memory"
        failure = SystemFailure(what, where=getattr(error, "filename", None))
        return Checked(asked.path, failure.exit_code, time.perf_counter() - start, error=error_record(failure))
    return Checked(asked.path, code, time.perf_counter() - start, verification=data)


def _verified(asked: Asked) -> tuple[int, dict[str, Any]]:
    """What `mtptools verify --json` returns and prints: a gate has no view of its own on what is right."""
    words = _words(asked)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = verify.main(["--json", *words], prog_name="verify", standalone_mode=False)
    return int(code), json.loads(printed.getvalue())


def _words(asked: Asked) -> list[str]:
    """The command line of `verify` for one artifact. Raises InputError for a sidecar without a trunk."""
    told, path = dict(asked.told), asked.path
    static = told.pop("static", False)
    if not static and "head" not in told and _is_sidecar(path, bool(told.get("generic"))):
        if "trunk" not in told:
            hint = f"mtptools check {typed(path)} --trunk TRUNK, or --static"
            raise InputError("a sidecar: there is no trunk in it to decode with", where=path, hint=hint)
        told["head"], path = path, str(told.pop("trunk"))
    if not static and "stream" not in told:
        told["parity"] = True
    return [*_typed(told), "--", path]


def _typed(told: Told) -> list[str]:
    """Options of verify as they are typed; `static` is none of it."""
    return [word for name, value in told.items() if name in _OPTIONS for word in _option(_OPTIONS[name], value)]


def _option(option: click.Option, value: object) -> list[str]:
    name = max(option.opts, key=len)
    if isinstance(value, bool):
        return [name if value else max(option.secondary_opts, key=len)]
    return [f"{name}={one}" for one in (value if isinstance(value, list) else [value])]


def _is_sidecar(path: str, generic: bool) -> bool:
    """What cannot be opened is none: `verify` says what is wrong with it."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.head import is_sidecar

    try:
        return is_sidecar(open_checkpoint(path, generic=generic))
    except MtpToolsError:
        return False
