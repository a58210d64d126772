"""mtptools quantize"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mtptools.cli.options import NO_OUTPUT, PATH, Writing, examples, generic_option, link_option, may_write_options
from mtptools.cli.sweep_options import Sweeping, sweep_options
from mtptools.errors import UsageError

if TYPE_CHECKING:
    from mtptools.plan import Plan

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools quantize model-BF16.gguf -o out.gguf --head Q8_0",
        "mtptools quantize model.gguf -o out.gguf --head Q4_K_M --role nextn.eh_proj=Q8_0 --imatrix head.imatrix.gguf",
        "mtptools quantize Qwen3.6-27B-Q4_K_M.gguf -o out.gguf --own-output Q4_K --verify",
        "mtptools quantize model-BF16.gguf --sweep Q8_0,Q6_K,Q5_K,Q4_K_M,IQ4_XS --imatrix head.imatrix.gguf",
        "mtptools quantize model-BF16.gguf --sweep Q8_0,Q4_K --text corpus.txt --plot sweep.svg -o out.gguf",
        "mtptools quantize ./Qwen3.6-27B-FP8 -o ./out --head fp8-block128",
        "mtptools quantize ./Qwen3.6-27B-4bit -o ./out --head mlx-affine-g64b8",
    )
)
@click.argument("source", type=PATH)
@click.option("--head", "head", metavar="TYPE", help="Type of the head's matrices: Q4_K, a mixture such as Q4_K_M, …")
@click.option(
    "--role", "roles", multiple=True, metavar="ROLE=TYPE", help="Another type for one role; the last that fits wins."
)
@click.option("--own-output", metavar="TYPE", help="Give the head an output matrix of its own, made from the trunk's.")
@click.option("--imatrix", type=PATH, metavar="FILE", help="Importance matrix of the head, see mtptools imatrix.")
@click.option("--norm-type", metavar="TYPE", help="Type of the head's norms in safetensors, e.g. F32.")
@generic_option
@link_option
@sweep_options
@may_write_options
def command(
    source: Path,
    head: str | None,
    roles: tuple[str, ...],
    own_output: str | None,
    imatrix: Path | None,
    norm_type: str | None,
    generic: bool,
    link: bool,
    sweep: Sweeping | None,
    writing: Writing,
) -> int:
    """Write SOURCE with its head in another type; the trunk's bytes pass through unchanged.

    TYPE is a type of the container, for every matrix, or a mixture by the name llama-quantize gives it. Norms and
    routers stay F32 in GGUF. SOURCE is a checkpoint with its head, or a sidecar.

    --sweep measures how often drafts are right with each type and says which to publish; with -o that one is written.
    Where that is the head as it is, nothing is written and the exit code is 1.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.weights import read_weights
    from mtptools.cli.writing import carry_out
    from mtptools.cli.written import after_quantize
    from mtptools.ops.quantize import quantize
    from mtptools.ops.style import Style

    if sweep is not None and head:
        raise UsageError(
            "the type is what a sweep finds out", where="--head", hint="leave it out, or leave out --sweep"
        )
    if sweep is None and not (head or roles or own_output or norm_type):
        raise UsageError("nothing to quantize to", where="--head", hint="--head Q8_0, or --own-output Q4_K")
    if writing.out == NO_OUTPUT and (sweep is None or writing.verify):
        raise UsageError("no output was given", where="-o", hint="-o OUT; --sweep alone can do without")
    ckpt = open_checkpoint(source, generic=generic)
    importance = read_weights(imatrix, writing.out)

    def plan_of(kind: str | None, weighted: bool) -> Plan:
        style = Style.asked(kind, norm_type, roles=roles, own_output=own_output, option="--head")
        name = ckpt.path.name if writing.out == NO_OUTPUT else writing.out.name
        return quantize(ckpt, name, style, importance=importance if weighted else None, link=link)

    check = after_quantize(ckpt, quiet=writing.quiet or writing.as_json) if writing.verify else None
    if sweep is not None:
        from mtptools.cli.sweeping import run_sweep

        return run_sweep(ckpt, plan_of, sweep, writing, weighted=importance is not None, verify=check)
    return carry_out(plan_of(head, True), writing, check)
