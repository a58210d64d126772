"""Which options of `verify` go with which of its ways to run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import click

from mtptools.errors import UsageError

__all__ = ["PARITY_FLAGS", "check_modes"]

_ALL: Final = ("parity", "stream", "runtime")
_LOADED: Final = ("parity", "runtime")
MODES: Final = {
    **dict.fromkeys(("k", "prompts", "limit", "head", "min_acceptance", "device", "dtype", "threads"), _ALL),
    **dict.fromkeys(("tap", "recycle", "mask_first", "recurrence"), _ALL),
    **dict.fromkeys(("tokens", "offload", "context", "graphs"), _LOADED),
    **dict.fromkeys(("baseline", "serial", "probe"), ("parity",)),
}
_SPELLED: Final = {"graphs": "--no-graphs"}
# What a pass over a text (--stream) has no use for.
PARITY_FLAGS: Final = tuple(name for name, modes in MODES.items() if "stream" not in modes)


def check_modes(ctx: click.Context, running: Collection[str]) -> None:
    """Refuse options that what is to run has no use for. Raises UsageError.

    running  of "parity", "stream", "runtime": what was asked for
    """
    if {"parity", "stream"} <= set(running):
        raise UsageError("--stream is one pass in place of --parity", hint="give one of them")
    if {"runtime", "stream"} <= set(running):
        raise UsageError(
            "--runtime runs the artifact, --stream reads it", hint="run verify twice, with one of them each"
        )
    for name, modes in MODES.items():
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE or set(modes) & set(running):
            continue
        option = _SPELLED.get(name, f"--{name.replace('_', '-')}")
        if "stream" in running:
            raise UsageError(f"{option} is of --parity, not of --stream", hint=f"leave out {option}")
        wanted = " or ".join(f"--{mode}" for mode in modes if mode != "runtime")
        raise UsageError(f"{option} needs {wanted}", hint="add --parity")
