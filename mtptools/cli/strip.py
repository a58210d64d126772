"""mtptools strip"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from mtptools.cli.options import PATH, Writing, examples, generic_option, link_option, writing_options

__all__ = ["command"]


@click.command(epilog=examples("mtptools strip model.gguf -o trunk.gguf", "mtptools strip ./model -o ./trunk"))
@click.argument("source", type=PATH)
@link_option
@generic_option
@writing_options
def command(
    source: Path,
    link: bool,
    generic: bool,
    writing: Writing,
) -> int:
    """Remove the head and declare none. Also mends a checkpoint that declares a head it does not have."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.writing import carry_out
    from mtptools.cli.written import static_check
    from mtptools.ops.extract import strip

    plan = strip(open_checkpoint(source, generic=generic), writing.out.name, link=link)
    check = partial(static_check, generic=generic) if writing.verify else None
    return carry_out(plan, writing, check)
