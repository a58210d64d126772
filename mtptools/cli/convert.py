"""mtptools convert"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mtptools.cli.options import PATH, Writing, examples, writing_options

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools convert ./DeepSeek-V3-head -o head.gguf --to gguf",
        "mtptools convert model.gguf -o ./head --to hf",
        "mtptools convert ./Qwen3.5-27B -o ./head-mlx --to mlx --lossless --norm-type F32",
    )
)
@click.argument("source", type=PATH)
@click.option("--to", required=True, type=click.Choice(["hf", "gguf", "mlx"]), help="Dialect of the output.")
@click.option("--head-only", is_flag=True, help="The head alone, also where the whole checkpoint could be converted.")
@click.option("--bare", is_flag=True, help="Without the embedding, final norm and output matrix it shares.")
@click.option(
    "--outtype",
    type=click.Choice(["F32", "BF16", "F16", "Q8_0"], case_sensitive=False),
    help="Type of a whole checkpoint's matrices. [default: BF16]",
)
@click.option(
    "--pre", metavar="NAME", help="llama.cpp's name of the pre-tokenizer, where tokenizer.json does not tell."
)
@click.option("--head-type", metavar="TYPE", help="Type of the matrices of a head alone, e.g. BF16 or Q8_0.")
@click.option("--norm-type", metavar="TYPE", help="Type of the head's norms in safetensors, e.g. F32.")
@click.option("--experts", type=click.Choice(["single", "fused"]), help="Layout of the head's experts in HF.")
@click.option("--lossless", is_flag=True, help="Refuse when any bit of the head could not be had back.")
@writing_options
def command(
    source: Path,
    to: Any,
    bare: bool,
    head_only: bool,
    outtype: Any,
    pre: str | None,
    lossless: bool,
    writing: Writing,
    **style: Any,
) -> int:
    """Take a head to another dialect: Hugging Face, GGUF or MLX.

    SOURCE is a sidecar or a checkpoint with its head, of which the head is converted. A whole Hugging Face checkpoint
    of Qwen3.5, Qwen3-Next, GLM-4.5 or DeepSeek-V3 becomes a whole GGUF, its head included, unless --head-only is given.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.writing import carry_out
    from mtptools.cli.written import static_check
    from mtptools.errors import UsageError
    from mtptools.head import is_sidecar
    from mtptools.ops.convert import convert_head
    from mtptools.ops.convert_gguf import convert_gguf, converts_whole
    from mtptools.ops.style import Style

    ckpt = open_checkpoint(source)
    whole = to == "gguf" and converts_whole(ckpt) and not (head_only or bare) and not is_sidecar(ckpt)
    of_heads = {"--lossless": lossless, **{f"--{k.replace('_', '-')}": v for k, v in style.items()}}
    stated = [name for name, value in of_heads.items() if value]
    if whole and stated:
        raise UsageError(f"{stated[0]} is for a head, and the whole checkpoint would be converted", hint="--head-only")
    if not whole and (outtype is not None or pre is not None):
        raise UsageError("--outtype and --pre are for a whole checkpoint", hint="--head-type gives a head's type")
    if to == "gguf" and style["norm_type"] is not None:
        raise UsageError("GGUF holds norms in F32", where="--norm-type", hint="leave it out")
    if to != "hf" and style["experts"] is not None:
        raise UsageError(f"{to} stacks experts", where="--experts", hint="leave it out")
    if whole:
        plan = convert_gguf(ckpt, writing.out.name, outtype=outtype or "BF16", pre=pre)
    else:
        asked = Style.asked(style["head_type"], style["norm_type"], style["experts"])
        plan = convert_head(ckpt, writing.out.name, to, asked, bare=bare, lossless=lossless)
    return carry_out(plan, writing, static_check if writing.verify else None)
