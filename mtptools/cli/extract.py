"""mtptools extract"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from mtptools.cli.options import PATH, Writing, examples, generic_option, writing_options

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools extract model.gguf -o mtp-model.gguf",
        "mtptools extract model.gguf -o head.gguf --bare",
        "mtptools extract ./Qwen3.5-27B -o ./Qwen3.5-27B-mtp",
        "mtptools extract Qwen/Qwen3.5-27B -o ./head --bare",
    )
)
@click.argument("source", type=PATH)
@click.option("--bare", is_flag=True, help="The head's own tensors alone: a small donor, loadable by no runtime.")
@generic_option
@writing_options
def command(
    source: Path,
    bare: bool,
    generic: bool,
    writing: Writing,
) -> int:
    """Take the head out into a sidecar.

    From GGUF: the file llama.cpp loads with -md beside a trunk. From Hugging Face: a folder vLLM takes as a separate
    draft. --verify checks lineage and validity; a sidecar has no trunk to decode with.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.writing import carry_out
    from mtptools.cli.written import static_check
    from mtptools.ops.extract import extract

    plan = extract(open_checkpoint(source, generic=generic), writing.out.name, bare=bare)
    check = partial(static_check, generic=generic) if writing.verify else None
    return carry_out(plan, writing, check)
