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
@click.option("--head-type", metavar="TYPE", help="Type of the head's matrices, e.g. BF16 or Q8_0.")
@click.option("--norm-type", metavar="TYPE", help="Type of the head's norms in safetensors, e.g. F32.")
@click.option("--experts", type=click.Choice(["single", "fused"]), help="Layout of the head's experts in HF.")
@click.option("--lossless", is_flag=True, help="Refuse when any bit of the head could not be had back.")
@writing_options
def command(source: Path, to: Any, bare: bool, head_only: bool, lossless: bool, writing: Writing, **style: Any) -> int:
    """Take a head to another dialect: Hugging Face, GGUF or MLX.

    SOURCE is a sidecar or a checkpoint with its head. Of a checkpoint the head alone is converted.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.verifying import static_check
    from mtptools.cli.writing import carry_out
    from mtptools.ops.convert import convert_head
    from mtptools.ops.render import Style

    asked = Style.asked(style["head_type"], style["norm_type"], style["experts"])
    plan = convert_head(open_checkpoint(source), writing.out.name, to, asked, bare=bare, lossless=lossless)
    return carry_out(plan, writing, static_check if writing.verify else None)
