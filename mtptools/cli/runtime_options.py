"""The options of running an artifact in a real runtime (L5), passed to a verb as one `runtime`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Final

import click

from mtptools.errors import UsageError

__all__ = ["EMBEDDED", "RUNTIME_FLAGS", "Asked", "runtime_options"]


EMBEDDED: Final = "llama.cpp"
"""The runtime of the xllamacpp wheel."""


@dataclass(frozen=True)
class Asked:
    """runtime  "llama.cpp" (of the wheel), the path of a llama-server, or an address
    runtime_plain  an address that serves the same without MTP;  runtime_model  the name it must serve
    runtime_alone  do not read the texts with our decoder
    runtime_timeout  seconds for one request, and for a server to be ready
    runtime_arg  further flags of a llama-server;  api_key_env  name of the environment variable with the key
    """

    runtime: str
    runtime_plain: str | None = None
    runtime_model: str | None = None
    runtime_alone: bool = False
    runtime_timeout: float = 600.0
    runtime_arg: tuple[str, ...] = ()
    api_key_env: str | None = None

    @property
    def is_address(self) -> bool:
        return self.runtime.startswith(("http://", "https://"))


RUNTIME_FLAGS: Final = tuple(field.name for field in fields(Asked) if field.name != "runtime")

_OPTIONS: Final = (
    click.option(
        "--runtime", metavar="WHAT", help="Run it for real (L5): llama.cpp, the path of a llama-server, or an address."
    ),
    click.option("--runtime-plain", metavar="URL", help="With an address: the same model served without MTP."),
    click.option("--runtime-model", metavar="NAME", help="With an address: the name of the model to ask for."),
    click.option("--runtime-alone", is_flag=True, help="Do not read the runtime's texts with our decoder."),
    click.option(
        "--runtime-timeout",
        default=600.0,
        show_default=True,
        type=click.FloatRange(0.1, 86400),
        help="Seconds for one answer, and for a server to be ready.",
    ),
    click.option(
        "--runtime-arg",
        multiple=True,
        metavar="FLAG",
        help="With a llama-server: one more flag, as --runtime-arg=-ngl=99.",
    ),
    click.option("--api-key-env", metavar="NAME", help="With an address: the environment variable that holds the key."),
)


def runtime_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options, passed as `runtime`: None without --runtime, which the others need."""

    @wraps(function)
    def call(runtime: str | None, **values: Any) -> Any:
        told = {name: values.pop(name) for name in RUNTIME_FLAGS}
        ctx = click.get_current_context()
        for name in RUNTIME_FLAGS:
            if runtime is None and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name.replace('_', '-')} needs --runtime", hint="add --runtime llama.cpp")
        return function(runtime=None if runtime is None else _asked(runtime, told), **values)

    decorated: Callable[..., Any] = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _asked(runtime: str, told: dict[str, Any]) -> Asked:
    """Raises UsageError for options that do not go with the runtime."""
    asked = Asked(runtime, **told)
    if not runtime:
        raise UsageError("no runtime is named", where="--runtime", hint="--runtime llama.cpp")
    if asked.runtime_arg and (asked.is_address or runtime == EMBEDDED):
        raise UsageError("this runtime takes no flags", where="--runtime-arg", hint="--runtime /path/to/llama-server")
    for name in ("runtime_plain", "runtime_model", "api_key_env"):
        if getattr(asked, name) and not asked.is_address:
            raise UsageError("this goes with an address", where=f"--{name.replace('_', '-')}", hint="--runtime URL")
    return asked
