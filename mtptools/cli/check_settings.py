"""mtptools.toml: the flags of `check`, kept beside the model. Keys are the flags' names."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from mtptools.errors import InputError, UsageError
from mtptools.report.escape import visible

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FILE_NAME", "Raw", "Settings", "read_settings"]

FILE_NAME: Final = "mtptools.toml"
_ARTIFACT: Final = "artifact"
_EXAMPLE: Final = 'against = "donor.gguf"'

Raw: TypeAlias = "str | bool | list[str]"
"""The value of an option as the command line's parser has it: a flag is a bool, one that may be repeated a list."""


@dataclass(frozen=True)
class Settings:
    """folder  of the file, from which its paths are relative;  common  by parameter name, for every artifact

    artifacts  (path, what is its own), in the order of the file
    """

    file: Path | None = None
    common: Mapping[str, Raw] = field(default_factory=dict)
    artifacts: tuple[tuple[Path, Mapping[str, Raw]], ...] = ()

    def of(self, path: Path) -> Mapping[str, Raw]:
        """What is an artifact's own."""
        return next((told for one, told in self.artifacts if _place(one) == _place(path)), {})


def _place(path: Path) -> str:
    """The same for two ways to one name; two links to one file are two. (`Path.resolve` raises at a loop of links.)"""
    folder, name = os.path.split(os.path.abspath(path))  # noqa: PTH100
    return os.path.join(os.path.realpath(folder), name)  # noqa: PTH118


def read_settings(path: Path, options: Mapping[str, click.Option], gate: Collection[str]) -> Settings:
    """Read a settings file.

    options  by key;  gate  keys that are of a run, not of one artifact

    Raises InputError (no such file), UsageError: not TOML, a key that is none, a value of another type.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")  # editors of Windows put a mark at the beginning
        tree = tomllib.loads(text)
    except OSError as error:
        raise InputError(
            f"cannot read the settings: {error.strerror or error}", where=path, hint="--config FILE, or leave it out"
        ) from error
    except (ValueError, RecursionError) as error:  # a line that is not TOML, a byte that is not UTF-8
        raise UsageError(f"not TOML: {error}", where=path, hint=f"a setting is a line such as {_EXAMPLE}") from error
    reader = _Reader(path, text, options)
    artifacts = tree.pop(_ARTIFACT, [])
    if not isinstance(artifacts, list) or not all(isinstance(one, dict) for one in artifacts):
        raise reader.refused(_ARTIFACT, "is no list of tables", '[[artifact]] on one line, path = "x.gguf" below')
    common = reader.table(tree, {*options, _ARTIFACT})
    found, seen = [], set[str]()
    for one in artifacts:
        named = one.pop("path", None)
        if not _fits(click.Path(), named):
            raise reader.refused(_ARTIFACT, "has no path", 'path = "x-Q4_K_M.gguf"')
        file = Path(named) if "://" in named else path.parent / named
        if _place(file) in seen:
            raise reader.refused("path", f"is {named!r} twice", "one [[artifact]] for each file")
        seen.add(_place(file))
        found.append((file, reader.table(one, {*options, "path"} - set(gate))))
    return Settings(path, common, tuple(found))


@dataclass(frozen=True)
class _Reader:
    """Turns tables into values of options, and knows where a key stands."""

    path: Path
    text: str
    options: Mapping[str, click.Option]

    def refused(self, key: str, what: str, hint: str) -> UsageError:
        lines = self.text.splitlines()
        named = re.compile(rf"""\s*(\[+\s*)?["']?{re.escape(key)}["']?\s*[=\].]""")
        found = [number for number, line in enumerate(lines, 1) if named.match(line)]
        # A key that several tables have stands in several lines: which of them is not known.
        where = f"{self.path}, line {found[0]}" if len(found) == 1 else self.path
        return UsageError(f"{visible(key)} {what}", where=where, hint=hint)

    def table(self, tree: Mapping[str, Any], known: Collection[str]) -> dict[str, Raw]:
        out: dict[str, Raw] = {}
        for key, value in tree.items():
            if key not in known:
                near = get_close_matches(key.replace("_", "-"), known, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"keys are flags: {', '.join(sorted(known))}"
                raise self.refused(key, "is no setting" + (" here" if key in self.options else ""), hint)
            option = self.options[key]
            raw = self.value(key, option, value)
            if raw is not None:
                out[str(option.name)] = raw
        return out

    def value(self, key: str, option: click.Option, value: Any) -> Raw | None:
        """As the parser of the command line has it; None for a flag that is switched off."""
        if option.is_flag:
            if not isinstance(value, bool):
                raise self.refused(key, f"is {value!r}, not true or false", f"{key} = true")
            return value if value or option.secondary_opts else None
        values = value if isinstance(value, list) else [value]
        if not values or not all(_fits(option.type, one) for one in values):
            raise self.refused(key, f"is {value!r}: not {_kind(option)}", f"{key} = {_sample(option)}")
        texts = [self.placed(one, option) for one in values]
        if option.multiple:
            return texts
        if len(texts) > 1 and type(option.type) is not type(click.STRING):
            raise self.refused(key, "is a list, one value is wanted", f"{key} = {_sample(option)}")
        return ",".join(texts)

    def placed(self, value: Any, option: click.Option) -> str:
        """As text; a relative path from the file's folder. An address (hf://…) is no path."""
        text = str(value)
        a_path = isinstance(option.type, click.Path) or text.startswith(("./", "../"))
        return str(self.path.parent / text) if a_path and "://" not in text else text


def _fits(kind: click.ParamType[Any], value: Any) -> bool:
    if isinstance(value, bool) or (isinstance(value, str) and "\0" in value):
        return False
    if isinstance(kind, type(click.INT)):
        return isinstance(value, int)
    if isinstance(kind, type(click.FLOAT)):
        return isinstance(value, int | float)
    if isinstance(kind, click.Path | click.Choice):
        return isinstance(value, str) and value != ""
    return isinstance(value, str | int | float)


def _kind(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return f"one of {', '.join(option.type.choices)}"
    if isinstance(option.type, type(click.INT)):
        return "a whole number"
    return "a path" if isinstance(option.type, click.Path) else "a text or a number"


def _sample(option: click.Option) -> str:
    if isinstance(option.type, type(click.INT)):
        return "16"
    if isinstance(option.type, click.Choice):
        return f'"{option.type.choices[0]}"'
    return '"file.gguf"' if isinstance(option.type, click.Path) else '"…"'
