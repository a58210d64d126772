"""mtptools graft"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.options import PATH, Writing, examples, writing_options

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools graft trunk-Q4_K_M.gguf donor.gguf -o out.gguf",
        "mtptools graft trunk-Q4_K_M.gguf ./Qwen3.5-27B -o out.gguf --head-type Q8_0 --verify",
        "mtptools graft ./my-finetune ./Qwen3.5-27B -o ./restored --dry-run",
    )
)
@click.argument("trunk", type=PATH)
@click.argument("donor", type=PATH)
@click.option("--head-type", metavar="TYPE", help="Type of the head's matrices, e.g. Q8_0 or BF16.")
@click.option("--allow-mismatch", "allow", multiple=True, metavar="FINDING", help="Accept this finding; repeatable.")
@writing_options
def command(
    trunk: Path,
    donor: Path,
    head_type: str | None,
    allow: tuple[str, ...],
    writing: Writing,
) -> int:
    """Put the head of DONOR onto TRUNK and write one checkpoint that declares it.

    DONOR is any checkpoint of the same model that has a head, or a sidecar made by extract. The trunk's bytes pass
    through unchanged.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.verifying import after_graft
    from mtptools.cli.writing import carry_out
    from mtptools.ops.graft import graft

    base, source = open_checkpoint(trunk), open_checkpoint(donor)
    plan = graft(base, source, writing.out.name, head_type=head_type, allow=allow)
    check = after_graft(base, source, quiet=writing.quiet or writing.as_json) if writing.verify else None
    return carry_out(plan, writing, check)
