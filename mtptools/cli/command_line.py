"""The command that was typed, as a report shows it: what can be typed again to get the same result."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Final

import click

__all__ = ["command_line"]

# Where the result goes, not what it is.
_PLACES: Final = {"as_json", "quiet", "verbose", "html", "markdown", "junit", "out", "api_key_env"}
# pathlib makes one slash of two; who may read an address stands before an @, or after a question mark.
_REMOTE: Final = re.compile(r"^(hf|https?):/+(?:[^/@]*@(?=[^/]+\.|localhost))?")


def command_line(ctx: click.Context | None = None) -> str:
    """`mtptools verify out.gguf --parity …` with the options that were given, quoted for a shell.

    Options that say where the result goes are left out. A report is published, and folders of a machine are not:
    of an absolute path the last part is shown.
    """
    ctx = ctx or click.get_current_context()
    words = ["mtptools", ctx.info_name or ""]
    for param in ctx.command.params:
        stated = ctx.get_parameter_source(param.name or "") is click.core.ParameterSource.COMMANDLINE
        if stated and param.name not in _PLACES:
            words += _words(param, ctx.params.get(param.name or ""))
    return shlex.join(words)


def _words(param: click.Parameter, value: Any) -> list[str]:
    values = list(value) if isinstance(value, tuple | list) else [value]
    if not isinstance(param, click.Option):
        return [_shown(one) for one in values if one is not None]
    name = max(param.opts, key=len)
    if param.is_flag:
        return [name if value else max(param.secondary_opts or param.opts, key=len)]
    return [word for one in values for word in (name, _shown(one))]


def _shown(value: Any) -> str:
    text = str(value)
    if _REMOTE.match(text):
        return _REMOTE.sub(r"\1://", text.partition("?")[0])
    name, equals, path = text.partition("=")  # --corpus code=/home/me/src
    if equals and Path(path).is_absolute():
        return f"{name}={Path(path).name}"
    return Path(text).name if Path(text).is_absolute() else text
