"""Options that several verbs share, spelled once."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from mtptools.cli.help_pages import CHECKPOINTS
from mtptools.decoder.device_names import device_names
from mtptools.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from mtptools.decoder.sampling import Sampling

__all__ = [
    "NO_OUTPUT",
    "PATH",
    "Running",
    "Writing",
    "chunk_device_options",
    "device_options",
    "device_table",
    "examples",
    "generic_option",
    "link_option",
    "may_write_options",
    "output_options",
    "sampling_options",
    "wiring_options",
    "writing_options",
]

F = TypeVar("F", bound=Callable[..., Any])


class _Path(click.Path):
    """A path that is not empty: an unset shell variable must not mean the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the path is empty; is a shell variable unset?", param, ctx)
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
        """Model files and folders for what is a checkpoint, any file for the rest."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="checkpoint" if param.name in CHECKPOINTS else "file")]


# Where a verb writes that was told no output. No path that is typed is this one.
NO_OUTPUT: Final = Path()

# Whether a path can be read is for opening it to find out: that error has an exit code of its own.
PATH: Final = _Path(path_type=Path, readable=False)


def _all(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return apply


output_options = _all(
    click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout."),
    click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors; the exit code tells."),
    click.option("-v", "--verbose", is_flag=True, help="Say more: every tensor, every check that passed."),
)


generic_option = click.option(
    "--generic", is_flag=True, help="Take a GGUF of an unknown architecture as it stands; nothing of it is checked."
)


@dataclass(frozen=True)
class Writing:
    """What every writing verb was told: where to, how, and how to report.

    out  NO_OUTPUT when none was given to a verb that need not write
    """

    out: Path
    dry_run: bool
    force: bool
    verify: bool
    as_json: bool
    quiet: bool
    verbose: bool


_writing_options = _all(
    click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
    click.option("--force", is_flag=True, help="Replace an existing output."),
    click.option(
        "--verify",
        is_flag=True,
        help="Verify the output at once, with the decoder if it has a trunk; the receipt keeps it.",
    ),
    output_options,
)


def _named(out: Path) -> Path:
    """The output with a name of its own: `.` and `..` as what they stand for. Raises UsageError for the root."""
    if out.name not in ("", ".."):
        return out
    full = Path(os.path.abspath(out))  # noqa: PTH100  a link is named, not what it leads to
    if not full.name:
        raise UsageError("the output is the root folder", where="-o", hint="give a file or a folder of its own")
    return full


def _writing(out: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(**values: Any) -> Any:
            writing = Writing(**{field.name: values.pop(field.name) for field in fields(Writing)})
            writing = replace(writing, out=NO_OUTPUT if writing.out is None else _named(writing.out))
            return function(writing=writing, **values)

        options: Callable[..., Any] = out(_writing_options(call))
        return options

    return apply


_OUTPUT: Final = ("-o", "--output", "out")

writing_options = _writing(click.option(*_OUTPUT, required=True, type=PATH, help="File or folder to write."))
"""The options of a writing verb, passed to it as one `writing`."""

may_write_options = _writing(click.option(*_OUTPUT, type=PATH, help="File or folder to write."))
"""The same of a verb that has something to say without an output."""


@dataclass(frozen=True)
class Running:
    """Where the decoder runs, and how.

    device   one or several, as typed;  threads  of the CPU, None for what suits the model
    offload  layers stay in the CPU's memory;  context  tokens to keep room for, None for what the texts take
    graphs   replay passes of few rows as CUDA graphs
    """

    device: str
    dtype: str
    threads: int | None
    offload: bool
    context: int | None
    graphs: bool

    @property
    def on_gpu(self) -> bool:
        return any(name.kind == "cuda" for name in device_names(self.device))

    def check(self, longest: int) -> None:
        """Before torch is imported. Raises UsageError for what does not go together, or with the model.

        longest  the model's context in tokens, 0 where it states none
        """
        if self.offload and not self.on_gpu:
            raise UsageError(
                "the model runs on the CPU: there is no GPU to copy layers to",
                where="--offload",
                hint="--device cuda --offload",
            )
        if longest and self.context is not None and self.context > longest:
            raise UsageError(f"the model's context is {longest} tokens", where="--context", hint=f"--context {longest}")


def _device(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """As typed, if it names devices. Raises UsageError."""
    device_names(value)
    return value


def device_table(about: str = "") -> dict[str, Callable[[Any], Any]]:
    """The option of each field of `Running`; `about` stands before what each says of itself."""
    return {
        "device": click.option(
            "--device",
            default="cpu",
            show_default=True,
            callback=_device,
            help=f"{about}cpu, cuda, cuda:1, or several: cuda:0,cuda:1.",
        ),
        "dtype": click.option(
            "--dtype",
            default="float32",
            show_default=True,
            type=click.Choice(["float32", "bfloat16", "float16"]),
            help=f"{about}what matrices are multiplied in.",
        ),
        "threads": click.option(
            "--threads", type=click.IntRange(1, 1024), help=f"{about}CPU threads. [default: 1 for small models]"
        ),
        "offload": click.option(
            "--offload",
            is_flag=True,
            help=f"{about}keep layers in the CPU's memory, copy each to the GPU when used.",
        ),
        "context": click.option(
            "--context",
            type=click.IntRange(1, 1 << 24),
            help=f"{about}tokens to plan memory for. [default: what the texts take]",
        ),
        "graphs": click.option(
            "--graphs/--no-graphs",
            default=True,
            help=f"{about}replay short passes on a GPU as CUDA graphs, compared first. [default: graphs]",
        ),
    }


def _running(table: dict[str, Callable[[Any], Any]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(**values: Any) -> Any:
            told = {field.name: values.pop(field.name) for field in fields(Running) if field.name in table}
            return function(running=Running(**{"context": None, "graphs": False, **told}), **values)

        options: Callable[..., Any] = _all(*table.values())(call)
        return options

    return apply


device_options = _running(device_table())
"""The options of every verb that decodes, passed as one `running`."""

chunk_device_options = _running(
    {name: option for name, option in device_table().items() if name not in ("context", "graphs")}
)
"""The same of a verb whose --context is its own, and which reads texts in long passes alone."""


_SAMPLING: Final = {
    "temperature": click.option("--temperature", default=0.0, show_default=True, help="0 is greedy."),
    "top_k": click.option("--top-k", default=0, show_default=True, help="0: off."),
    "top_p": click.option("--top-p", default=1.0, show_default=True, help="1: off."),
    "min_p": click.option("--min-p", default=0.0, show_default=True, help="0: off."),
    "seed": click.option(
        "--seed", default=0, show_default=True, type=int, help="Of the random numbers; the same seed, the same text."
    ),
}
_PENALTIES: Final = {
    "repetition": click.option("--repetition-penalty", "repetition", default=1.0, show_default=True, help="1: off."),
    "presence": click.option("--presence-penalty", "presence", default=0.0, show_default=True, help="0: off."),
    "frequency": click.option("--frequency-penalty", "frequency", default=0.0, show_default=True, help="0: off."),
    "last_n": click.option(
        "--penalty-range", "last_n", default=0, show_default=True, help="Tokens they look back; 0: the whole text."
    ),
}
_DRY: Final = {
    "multiplier": click.option("--dry-multiplier", "multiplier", default=0.0, show_default=True, help="0: off."),
    "base": click.option(
        "--dry-base", "base", default=1.75, show_default=True, help="Growth with each token repeated."
    ),
    "allowed_length": click.option(
        "--dry-allowed-length", "allowed_length", default=2, show_default=True, help="Tokens that may repeat."
    ),
    "dry_last_n": click.option(
        "--dry-range", "dry_last_n", default=0, show_default=True, help="Tokens DRY looks back; 0: the whole text."
    ),
}


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of sampling, passed as one `sampling`; None when none of them was given."""

    @wraps(function)
    def call(**values: Any) -> Any:
        given = click.get_current_context().get_parameter_source
        stated = any(given(name) is click.core.ParameterSource.COMMANDLINE for name in (*_SAMPLING, *_PENALTIES, *_DRY))
        chain, penalties, dry = ({name: values.pop(name) for name in part} for part in (_SAMPLING, _PENALTIES, _DRY))
        return function(sampling=_sampling(chain, penalties, dry) if stated else None, **values)

    return _all(*_SAMPLING.values(), *_PENALTIES.values(), *_DRY.values())(call)


def _sampling(chain: dict[str, Any], penalties: dict[str, Any], dry: dict[str, Any]) -> Sampling:
    from mtptools.decoder.penalties import Dry, Penalties
    from mtptools.decoder.sampling import Sampling

    dry["last_n"] = dry.pop("dry_last_n")
    return Sampling(**chain, penalties=Penalties(**penalties), dry=Dry(**dry))


_SIDES: Final = click.Choice(["post", "pre"])
_WIRING: Final = {
    "tap": click.option("--tap", type=_SIDES, help="Trunk state that enters the head: after or before the final norm."),
    "recycle": click.option("--recycle", type=_SIDES, help="Head state for the next draft: after or before its norm."),
    "mask_first": click.option("--mask-first/--no-mask-first", default=None, help="Zero the embedding at position 0."),
    "recurrence": click.option(
        "--recurrence",
        type=click.Choice(["cycle", "exact", "first"]),
        help="How layers of a deep head take turns.  [default of all four: the family's]",
    ),
}


def wiring_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that overrule a family's wiring, passed as one `wiring` with those that were given."""

    @wraps(function)
    def call(**values: Any) -> Any:
        stated = {name: values.pop(name) for name in _WIRING}
        return function(wiring={name: value for name, value in stated.items() if value is not None}, **values)

    return _all(*_WIRING.values())(call)


# For verbs whose output keeps whole files of the input.
link_option = click.option(
    "--link",
    is_flag=True,
    help="Hard-link the shards in which nothing changes: no copy, no space. Edit neither then, they are one file.",
)


def examples(*lines: str) -> str:
    """An epilog with examples, kept line by line."""
    return "Examples:\n\n\b\n" + "\n".join(f"  {line}" for line in lines)
