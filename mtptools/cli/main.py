"""Entry point: finds the verb, and turns every error into what, where, what to type next, and an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import Any, Final

import click

from mtptools import __version__
from mtptools.cli.output import ReaderGone, emit, note
from mtptools.errors import IncompatibleError, MtpToolsError, SystemFailure

__all__ = ["VERBS", "cli", "main"]

# verb: one line for --help. A verb's module is imported only when it runs: `mtptools --help` answers at once.
VERBS: Final = {
    "inspect": "Show what is in a checkpoint: family, head, sizes, types.",
    "validate": "Check what the config declares against what the file holds.",
    "diff": "Compare two checkpoints tensor by tensor.",
    "extract": "Take the head out into a sidecar.",
    "strip": "Remove the head and declare none.",
    "graft": "Put a donor's head onto a trunk.",
    "quantize": "Put the head into another type.",
    "convert": "Take a head to another dialect: hf, gguf or mlx.",
    "verify": "Prove a checkpoint: lineage, validity, parity, acceptance.",
    "bench": "Measure what the head gains: acceptance and speed per k.",
    "check": "Gate a publish: everything verify can prove, one verdict, reports for CI.",
    "card": "Write the section of a model card: what it is, what was proved.",
    "receipt": "Show what an output was made from, and check every digest.",
    "upload": "Send an output to a hub.",
    "generate": "Generate text, plain or speculatively with the head.",
    "prune-vocab": "Let the head draft over fewer tokens: smaller and faster.",
    "imatrix": "Measure the head's importance matrix, for quantizing it.",
    "completion": "Print the completion script of a shell.",
    "families": "List the known architectures.",
}


class _Verbs(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """A connection that breaks is no failed check, which click would make of it."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise SystemFailure(str(error.strerror or error), hint="the other end went away: try again") from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        from mtptools.cli.help import Verb

        return Verb.of(importlib.import_module(f"mtptools.cli.{name.replace('-', '_')}").command, name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples:\n\n\b\n  mtptools inspect model.gguf\n  mtptools graft trunk.gguf donor.gguf -o out.gguf\n"
    "  mtptools verify out.gguf --parity --against donor.gguf\n\n"
    "Exit codes: 0 pass, 1 a check failed, 2 usage, 3 bad input, 4 trunk and donor incompatible, "
    "5 cannot encode, 6 output exists, 7 environment, 8 no decoder for the family, 130 stopped.",
)
@click.version_option(__version__, prog_name="mtptools")
def cli() -> None:
    """Surgery on checkpoints that carry a multi-token-prediction head, and proof of the result."""


def _report(error: MtpToolsError, as_json: bool) -> None:
    from mtptools.hub import shown  # of a mirror, a person knows the address and not the path
    from mtptools.report.escape import visible

    if as_json:
        record = {
            "error": type(error).__name__,
            "what": shown(error.what),
            "where": error.where and shown(error.where),
            "hint": error.hint and shown(error.hint),
            "findings": list(error.findings) if isinstance(error, IncompatibleError) else [],
            "exit_code": error.exit_code,
        }
        emit(record, "", as_json=True, quiet=False)
    lines = [f"error: {error}"]
    lines += [f"  - {finding}" for finding in error.findings] if isinstance(error, IncompatibleError) else []
    lines += [f"hint: {error.hint}"] if error.hint else []
    for line in lines:
        note(visible(shown(line)))  # a name with a line break in it starts no line of its own


def _terminated(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: list[str] | None = None) -> Any:
    """Run the command line and exit with its code."""
    # huggingface_hub would name torch's version and an agent's to its server, and ask that for a list of agents.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    for name in ("SIGTERM", "SIGHUP"):  # a terminal that goes away is no reason to leave half a file
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _terminated)
    try:
        code = cli.main(args=argv, standalone_mode=False)
    except MtpToolsError as error:
        _report(error, "--json" in (sys.argv[1:] if argv is None else argv))
        code = error.exit_code
    except ReaderGone:
        code = 0
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = 2
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped: inputs are untouched, nothing half-written is left", err=True)
        code = 130
    except MemoryError:
        click.echo("error: out of memory\nhint: close other programs, or use a machine with more memory", err=True)
        code = 7
    except OSError as error:
        click.echo(f"error: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
        code = 7
    sys.exit(code if isinstance(code, int) else 0)
