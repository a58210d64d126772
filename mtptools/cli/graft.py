"""mtptools graft"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mtptools.cli.options import PATH, Writing, examples, generic_option, link_option, writing_options

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools graft trunk-Q4_K_M.gguf donor.gguf -o out.gguf",
        "mtptools graft trunk-Q4_K_M.gguf ./Qwen3.5-27B -o out.gguf --head-type Q8_0 --verify",
        "mtptools graft trunk-Q4_K_M.gguf Qwen/Qwen3.5-27B -o out.gguf",
        "mtptools graft ./my-finetune ./Qwen3.5-27B -o ./restored --dry-run",
        "mtptools graft ./my-finetune ./Qwen3.5-27B -o ./restored --link",
    )
)
@click.argument("trunk", type=PATH)
@click.argument("donor", type=PATH)
@click.option("--head-type", metavar="TYPE", help="Type of the head's matrices: Q8_0, BF16, Q4_K_M, …")
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE=TYPE", help="Another type for one role; the last that fits wins."
)
@click.option("--own-output", metavar="TYPE", help="Give the head an output matrix of its own, made from the trunk's.")
@click.option("--imatrix", type=PATH, metavar="FILE", help="Importance matrix of the head, see mtptools imatrix.")
@click.option("--norm-type", metavar="TYPE", help="Type of the head's norms in safetensors, e.g. F32.")
@click.option("--experts", type=click.Choice(["single", "fused"]), help="Layout of the head's experts in HF.")
@click.option("--lossless", is_flag=True, help="Refuse when any bit of the head could not be had back.")
@generic_option
@click.option("--allow-mismatch", "allow", multiple=True, metavar="FINDING", help="Accept this finding; repeatable.")
@link_option
@writing_options
def command(
    trunk: Path,
    donor: Path,
    allow: tuple[str, ...],
    generic: bool,
    link: bool,
    imatrix: Path | None,
    writing: Writing,
    **style: Any,
) -> int:
    """Put the head of DONOR onto TRUNK and write one checkpoint that declares it.

    DONOR is any checkpoint of the same model that has a head, or a sidecar made by extract. The trunk's bytes pass
    through unchanged.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.weights import read_weights
    from mtptools.cli.writing import carry_out
    from mtptools.cli.written import after_graft
    from mtptools.ops.graft import graft

    base, source = open_checkpoint(trunk, generic=generic), open_checkpoint(donor, generic=generic)
    importance = read_weights(imatrix, writing.out)
    plan = graft(base, source, writing.out.name, importance=importance, link=link, allow=allow, **style)
    check = after_graft(base, source, quiet=writing.quiet or writing.as_json) if writing.verify else None
    return carry_out(plan, writing, check)
