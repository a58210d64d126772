"""The options of `verify --stream`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from mtptools.cli.options import PATH
from mtptools.errors import UsageError

__all__ = ["STREAM_FLAGS", "Streaming", "stream_options"]


@dataclass(frozen=True)
class Streaming:
    """text       files of text;  positions  tokens to read of all of them;  window  at most so many in one passage
    layers     (first, stop) of the trunk, None for all;  state  a folder that keeps states between layers
    exact      compute row by row, as decoding does
    """

    text: tuple[Path, ...]
    positions: int
    window: int
    layers: tuple[int, int] | None
    state: Path | None
    exact: bool


STREAM_FLAGS: Final = tuple(field.name for field in fields(Streaming))


def _range(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    first, colon, stop = value.partition(":")
    if colon and not (first and stop):
        raise UsageError(
            f"{value!r} lacks an end", where="--layers", hint="both, as A:B: --layers 0:20 is the first twenty"
        )
    if not colon or not first.isdecimal() or not stop.isdecimal() or int(first) >= int(stop):
        raise UsageError(f"{value!r} is no range of layers", where="--layers", hint="--layers 0:20 is the first twenty")
    return int(first), int(stop)


_OPTIONS: Final = (
    click.option("--stream", is_flag=True, help="Read a text in one pass, a layer in memory at a time."),
    click.option(
        "--text",
        type=PATH,
        multiple=True,
        help="With --stream: a text, JSONL of prompt and completion, or what generate --json printed.",
    ),
    click.option(
        "--positions", default=2048, show_default=True, type=click.IntRange(2), help="With --stream: tokens to read."
    ),
    click.option(
        "--window",
        default=2048,
        show_default=True,
        type=click.IntRange(2),
        help="With --stream: tokens of a passage; a longer text goes on in another.",
    ),
    click.option("--layers", callback=_range, help="With --stream and --state: these layers only, as 0:20."),
    click.option("--state", type=PATH, help="With --stream: keep states here, and go on from those that are here."),
    click.option("--exact", is_flag=True, help="With --stream: the bits of decoding; slower."),
)


def stream_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options, passed as `streaming`: None without --stream, which the others need."""

    @wraps(function)
    def call(stream: bool, **values: Any) -> Any:
        told = {name: values.pop(name) for name in STREAM_FLAGS}
        ctx = click.get_current_context()
        for name in STREAM_FLAGS:
            if not stream and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name} needs --stream", hint="add --stream")
        if told["layers"] and told["state"] is None:
            raise UsageError("layers apart are joined by their states", where="--layers", hint="add --state DIR")
        if told["layers"] and (values.get("html") or values.get("markdown")):
            raise UsageError(
                "some layers alone give no report",
                where="--layers",
                hint="leave out --html and --markdown; the last run, without --layers, takes them",
            )
        return function(streaming=Streaming(**told) if stream else None, **values)

    decorated: Callable[..., Any] = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
