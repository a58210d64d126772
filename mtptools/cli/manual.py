"""docs/cli.md: the help of every verb, as it is printed. `python -m mtptools.cli.manual > docs/cli.md`"""

from __future__ import annotations

import click

from mtptools.cli.help import WIDTH
from mtptools.cli.main import VERBS, cli

__all__ = ["markdown"]

_HEAD = """\
# The command line

Made by `python -m mtptools.cli.manual`: what `mtptools VERB --help` prints. By job: [recipes](recipes/README.md).
"""


def markdown() -> str:
    """The page, as wide as --help is in a wide terminal."""
    lines = [_HEAD, "| verb | does |", "|---|---|"]
    lines += [f"| [{verb}](#{verb}) | {does} |" for verb, does in VERBS.items()]
    with click.Context(cli, info_name="mtptools", terminal_width=WIDTH) as top:
        for verb in VERBS:
            command = cli.get_command(top, verb)
            if command is not None:
                with click.Context(command, info_name=verb, parent=top, terminal_width=WIDTH) as ctx:
                    lines += ["", f"## {verb}", "", "```text", command.get_help(ctx), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    click.echo(markdown(), nl=False)
