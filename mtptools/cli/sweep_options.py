"""The options of `quantize --sweep`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from mtptools.cli.options import PATH, Running, device_table
from mtptools.errors import UsageError

__all__ = ["Sweeping", "parse_tolerance", "sweep_options"]


@dataclass(frozen=True)
class Sweeping(Running):
    """What was asked of a sweep; `types` are not checked yet, `tolerance` is a share."""

    types: tuple[str, ...]
    prompts: Path | None
    texts: tuple[Path, ...]
    limit: int | None
    tokens: int
    k: int
    tolerance: float
    plot: Path | None


_OPTIONS: Final = {
    "types": click.option("--sweep", "types", metavar="TYPES", help="Measure these types, Q8_0,Q6_K,Q4_K,… each."),
    "prompts": click.option(
        "--prompts", type=PATH, help="Sweep: text, one prompt a line, or JSONL. [default: a built-in set]"
    ),
    "texts": click.option(
        "--text", "texts", type=PATH, multiple=True, help="Sweep: prompts are passages of this text; repeatable."
    ),
    "limit": click.option("--limit", type=click.IntRange(1), help="Sweep: use N prompts, or passages (default 8)."),
    "tokens": click.option(
        "--tokens", default=64, show_default=True, type=click.IntRange(3, 100_000), help="Sweep: tokens per prompt."
    ),
    "k": click.option(
        "--k", default=3, show_default=True, type=click.IntRange(1, 64), help="Sweep: tokens drafted per step."
    ),
    "tolerance": click.option(
        "--tolerance", default="1%", show_default=True, help="Sweep: mean length that a smaller head may lose."
    ),
    "plot": click.option(
        "--plot", type=PATH, help="Sweep: draw it, FILE.svg or FILE.png; one that is there is replaced."
    ),
    **device_table("Sweep: "),
}


_SPELLED: Final = {"texts": "--text", "graphs": "--no-graphs"}


def sweep_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a sweep, passed as one `sweep`, None without --sweep. Raises UsageError for others without it."""

    @wraps(function)
    def call(**values: Any) -> Any:
        given = click.get_current_context().get_parameter_source
        told = {field.name: values.pop(field.name) for field in fields(Sweeping)}
        if told["types"] is None:
            stray = next((name for name in told if given(name) is click.core.ParameterSource.COMMANDLINE), None)
            if stray is not None:
                raise UsageError(
                    "only a sweep takes it", where=_SPELLED.get(stray, f"--{stray}"), hint="--sweep Q8_0,Q6_K,Q4_K"
                )
            return function(sweep=None, **values)
        told["types"] = _types(told["types"])
        told["tolerance"] = parse_tolerance(told["tolerance"])
        return function(sweep=Sweeping(**told), **values)

    for option in reversed(_OPTIONS.values()):
        call = option(call)
    return call


def _types(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise UsageError("no type to measure", where="--sweep", hint="--sweep Q8_0,Q6_K,Q4_K,IQ4_XS")
    return found


def parse_tolerance(text: str) -> float:
    """ "1%" or "0.01" as a share. Raises UsageError."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{text!r} is no share of a mean length", where="--tolerance", hint="1%, or 0.01")
    return value
