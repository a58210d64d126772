"""What `check` is asked: which artifacts, each with the flags of `verify` from its settings and the command line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import realpath
from pathlib import Path
from typing import Final

import click

from mtptools.cli.check_settings import FILE_NAME, Raw, Settings
from mtptools.cli.runtime_options import RUNTIME_FLAGS
from mtptools.cli.stream_options import STREAM_FLAGS
from mtptools.cli.verify import command as verify
from mtptools.cli.verify_modes import PARITY_FLAGS
from mtptools.errors import UsageError
from mtptools.report.escape import visible
from mtptools.report.gate import short_name

__all__ = ["RUN", "SHARED", "Asked", "Told", "artifacts", "given"]

# Flags of verify that are not check's: it prints by itself, and a part of the layers is no verdict.
_NOT_SHARED: Final = ("as_json", "quiet", "verbose", "layers")
SHARED: Final = tuple(p for p in verify.params if isinstance(p, click.Option) and p.name not in _NOT_SHARED)

RUN: Final = ("junit", "report")
"""Settings of a run, not of an artifact: files with all of it."""

# An address: pathlib makes one slash of two.
_REMOTE: Final = re.compile(r"^[a-z]+:/", re.IGNORECASE)

# What asks for one thing takes the others out of the settings below it.
_RIVALS: Final[Mapping[str, tuple[str, ...]]] = {
    "against": ("baseline",),
    "baseline": ("against",),
    "static": ("stream", "parity", "runtime"),
    "stream": ("static", "parity", "runtime"),
    "runtime": ("static", "stream"),
    "parity": ("static", "stream"),
}
# What decodes, and --static does not.
_DECODES: Final = ("parity", "stream", "runtime")
# All of a file that a static check has use for.
_STATIC: Final = ("static", "trunk", "against", "generic", "html", "markdown")
# Files that each artifact writes for itself; `{name}` in them is the artifact's.
_WRITTEN: Final = ("html", "markdown", "state")

Told = Mapping[str, Raw]


@dataclass(frozen=True)
class Asked:
    """One artifact; `told` by parameter name of `verify`, and `static`; `file` is where its settings stand."""

    path: str
    told: Told
    file: Path | None = None

    @property
    def name(self) -> str:
        return short_name(self.path)

    @property
    def files(self) -> list[Path]:
        """What it writes for itself."""
        return [Path(str(self.told[key])) for key in _WRITTEN if key in self.told]


def given(ctx: click.Context) -> dict[str, Raw]:
    """The options that were typed, by parameter name, as `verify` is given them again."""
    typed = click.core.ParameterSource.COMMANDLINE
    names = {"static", *RUN, *(str(option.name) for option in SHARED)}
    return {key: _raw(ctx.params[key]) for key in sorted(names) if ctx.get_parameter_source(key) is typed}


def _raw(value: object) -> Raw:
    if isinstance(value, bool):
        return value
    return [str(one) for one in value] if isinstance(value, tuple) else str(value)


def artifacts(
    paths: Sequence[str], flags: Told, settings: Settings | None, beside: Callable[[Path], Settings]
) -> tuple[list[Asked], dict[str, str]]:
    """Every PATH; for the folder of settings that list artifacts, these. Flags go before settings.

    settings  of --config; None: those beside each PATH, as `beside(file)` reads them where there are any

    Returns the artifacts, and what the settings say of the run as a whole (RUN), the first of them where they differ.
    Raises UsageError when two artifacts would write one file, or an artifact is asked for what excludes each other.
    """
    out: list[Asked] = []
    run: dict[str, str] = {}
    for path in paths:
        at, remote = Path(path), _REMOTE.match(path) is not None
        own = settings
        if own is None:
            own = Settings() if remote else beside((at if at.is_dir() else at.parent) / FILE_NAME)
        run = {key: str(own.common[key]) for key in RUN if key in own.common} | run
        found: list[tuple[str, Told]] = [(path, {} if remote else own.of(at))]
        if own.artifacts and own.file is not None and not remote and realpath(at) == realpath(own.file.parent):
            found = [(str(one), told) for one, told in own.artifacts]
        out += [Asked(one, _of_use(_over(own.common, told), flags), own.file) for one, told in found]
    named = [replace(one, told=_named(one.told, name)) for one, name in zip(out, _numbered(out), strict=True)]
    for key in _WRITTEN:
        written = [asked.told[key] for asked in named if key in asked.told]
        if len(set(map(str, written))) < len(written):
            raise UsageError(
                f"several artifacts would write {written[0]}", where=f"--{key}", hint=f"--{key} 'NAME-{{name}}'"
            )
    return named, run


def _over(below: Told, above: Told) -> dict[str, Raw]:
    gone = {rival for key in above for rival in _RIVALS.get(key, ())}
    return {key: value for key, value in below.items() if key not in gone} | dict(above)


def _of_use(file: Told, flags: Told) -> dict[str, Raw]:
    """Both together, without settings of the file that the way of running has no use for. Flags stay, to be judged."""
    whole = {key: value for key, value in _over(file, flags).items() if key not in RUN}
    if "static" in whole:
        rival = next((key for key in _DECODES if key in whole), None)
        if rival is not None:
            raise UsageError(f"--static decodes nothing, --{rival} does", hint="give one of them")
        idle = [key for key in whole if key not in _STATIC]
    else:
        idle = [*(PARITY_FLAGS if "stream" in whole else STREAM_FLAGS), *(() if "runtime" in whole else RUNTIME_FLAGS)]
    return {key: value for key, value in whole.items() if key in flags or key not in idle}


def _numbered(asked: Sequence[Asked]) -> Iterator[str]:
    """A name for each, for files: that of an earlier one gets a number, as in model.gguf-2."""
    seen = Counter[str]()
    for one in asked:
        name = visible(one.name)
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"


def _named(told: Told, name: str) -> Told:
    return {**told, **{key: str(told[key]).replace("{name}", name) for key in _WRITTEN if key in told}}
