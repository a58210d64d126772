"""The options of `prune-vocab`, by what they are about."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from mtptools.cli.options import PATH, Running, device_table
from mtptools.errors import UsageError

__all__ = [
    "Keeping",
    "Trying",
    "keep_options",
    "parse_corpora",
    "parse_weights",
    "require_used",
    "trial_options",
]


@dataclass(frozen=True)
class Keeping:
    """Which tokens are kept, as typed."""

    size: str | None
    ids: Path | None
    ids_as: str | None
    as_given: bool
    corpora: tuple[str, ...]
    weights: tuple[str, ...]
    from_model: Path | None
    tokenizer: Path | None
    processes: int | None
    plot: Path | None


@dataclass(frozen=True)
class Trying(Running):
    """What acceptance is measured on, and with."""

    trunk: Path | None
    measure: bool
    max_loss: float | None
    prompts: Path | None
    limit: int | None
    tokens: int
    k: int

    @property
    def asked(self) -> bool:
        return self.measure or self.max_loss is not None


_KEEP: Final = {
    "size": click.option("--size", metavar="N|auto", help="Tokens to keep: 32768, 64k (x 1024), auto. [default: auto]"),
    "corpora": click.option(
        "--corpus",
        "corpora",
        multiple=True,
        metavar="[NAME=]PATH",
        help="Text, JSONL or code to count, a domain each: every language its own; repeatable.",
    ),
    "weights": click.option(
        "--weight", "weights", multiple=True, metavar="NAME=W", help="What a domain counts for. [default: 1 each]"
    ),
    "from_model": click.option(
        "--from-model", type=PATH, metavar="PROMPTS", help="Count what the model itself writes after these prompts."
    ),
    "ids": click.option(
        "--ids", type=PATH, metavar="FILE", help="Keep these: a list, a map, or a pruned checkpoint; alone, no others."
    ),
    "ids_as": click.option(
        "--ids-as", type=click.Choice(["absolute", "offsets"]), help="What the numbers in --ids are, if it cannot tell."
    ),
    "as_given": click.option(
        "--as-given", is_flag=True, help="Do not add special, byte and chat-template tokens that are always kept."
    ),
    "tokenizer": click.option(
        "--tokenizer", type=PATH, metavar="PATH", help="A folder with tokenizer.json, or a GGUF. [default: SRC's own]"
    ),
    "processes": click.option(
        "--processes", type=click.IntRange(1, 256), help="Processes that count. [default: one a core]"
    ),
    "plot": click.option("--plot", type=PATH, help="Draw coverage against size, FILE.svg or FILE.png; replaced."),
}
_TRY: Final = {
    "max_loss": click.option(
        "--max-loss",
        type=click.FloatRange(0, 100),
        metavar="POINTS",
        help="Measure acceptance; write nothing and exit 1 when a domain loses more.",
    ),
    "measure": click.option("--measure", is_flag=True, help="Measure acceptance before and after, whatever is lost."),
    "trunk": click.option("--trunk", type=PATH, help="The trunk to decode with, where SRC is a sidecar."),
    "prompts": click.option(
        "--prompts", type=PATH, help="What to measure on. [default: those of --from-model, or passages of --corpus]"
    ),
    "limit": click.option("--limit", type=click.IntRange(1), help="Prompts, in all; passages of each domain: 8."),
    "tokens": click.option(
        "--tokens", default=64, show_default=True, type=click.IntRange(3, 100_000), help="Tokens per prompt."
    ),
    "k": click.option("--k", default=3, show_default=True, type=click.IntRange(1, 64), help="Tokens drafted per step."),
    **device_table(),
}


def _grouped(name: str, options: dict[str, Any], kind: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(**values: Any) -> Any:
            told = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            return function(**{name: told}, **values)

        out: Callable[..., Any] = call
        for option in reversed(options.values()):
            out = option(out)
        return out

    return apply


keep_options = _grouped("keeping", _KEEP, Keeping)
trial_options = _grouped("trying", _TRY, Trying)


_DECODING: Final = (
    "trunk",
    "prompts",
    "limit",
    "tokens",
    "k",
    "device",
    "dtype",
    "threads",
    "offload",
    "context",
    "graphs",
)
_HEAVIEST: Final = 1e6
_REDUCED: Final = ("sidecar", "keep_embeddings")
_SPELLED: Final = {"corpora": "--corpus", "weights": "--weight", "graphs": "--no-graphs"}


def require_used(keeping: Keeping, trying: Trying, *, restore: bool, map_only: bool) -> None:
    """Refuse an option that would change nothing. Raises UsageError."""
    counts = bool(keeping.corpora) or keeping.from_model is not None
    decodes = trying.asked or keeping.from_model is not None
    unused: list[tuple[bool, Sequence[str], str, str]] = [
        (restore, (*_KEEP, *_TRY, *_REDUCED, "map_only", "to"), "--restore takes no such option", ""),
        (map_only, (*_REDUCED, "link"), "a list is no checkpoint", ""),
        (not map_only, ("to",), "it is the format of a list", "--map-only --to ids"),
        (not counts, ("weights", "plot"), "it is about text that is counted", "--corpus FILE"),
        (not keeping.corpora, ("processes",), "it is about text that is counted", "--corpus FILE"),
        (not decodes, _DECODING, "it is for measuring", "--measure, or --max-loss POINTS"),
        (keeping.ids is None, ("ids_as",), "it says what the numbers of --ids are", "--ids FILE"),
    ]
    given = click.get_current_context().get_parameter_source
    for wrong, names, what, hint in unused:
        name = next((name for name in names if given(name) is click.core.ParameterSource.COMMANDLINE), None)
        if wrong and name is not None:
            option = _SPELLED.get(name, f"--{name.replace('_', '-')}")
            raise UsageError(what, where=option, hint=hint or "leave it out")


def parse_corpora(texts: tuple[str, ...]) -> dict[str, list[Path]]:
    """NAME=PATH, or PATH, whose stem is the name. A path that is there is one, whatever its name has in it."""
    out: dict[str, list[Path]] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists() or "/" in name:
            name, path = _stem(text), text
        if not (name and path):
            raise UsageError(
                f"{text!r} is not NAME=PATH", where="--corpus", hint="--corpus code=src --corpus notes.txt"
            )
        out.setdefault(_shown(name), []).append(Path(path))
    return out


def _stem(path: str) -> str:
    name = os.path.basename(os.path.abspath(path))  # noqa: PTH100, PTH119  a link has the name it was given
    return name.partition(".")[0] or name


def _shown(name: str) -> str:
    """A name that a table and a picture can hold."""
    return " ".join(name.encode("utf-8", "replace").decode().replace("|", " ").split()) or "text"


def parse_weights(texts: tuple[str, ...]) -> dict[str, float]:
    """NAME=W. Raises UsageError."""
    out: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not name or not 0 <= weight <= _HEAVIEST:
            raise UsageError(
                f"{text!r} is not NAME=W, a weight from 0 to {_HEAVIEST:g}", where="--weight", hint="--weight code=2"
            )
        if name in out:
            raise UsageError(f"{name} has two weights", where="--weight", hint=f"--weight {name}={number}")
        out[name] = weight
    return out
