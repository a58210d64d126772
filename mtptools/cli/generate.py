"""mtptools generate"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.options import PATH, examples, output_options
from mtptools.cli.output import emit, note

__all__ = ["command"]


@click.command(
    epilog=examples(
        'mtptools generate model.gguf -p "Once upon a time"',
        'mtptools generate model.gguf -p "Once upon a time" --k 3 --tokens 200',
        'mtptools generate trunk.gguf --head mtp.gguf -p "def main():" --k 2 --temperature 0.7 --seed 4',
    )
)
@click.argument("path", type=PATH)
@click.option("-p", "--prompt", required=True, help="Text to go on from.")
@click.option(
    "--k", default=0, show_default=True, type=click.IntRange(0, 64), help="Tokens drafted per step; 0: plain."
)
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(1, 1_000_000), help="Tokens at most.")
@click.option("--temperature", default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", default=0, show_default=True, help="0: off.")
@click.option("--top-p", default=1.0, show_default=True, help="1: off.")
@click.option("--seed", default=0, show_default=True)
@click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-text token.")
@click.option("--head", type=PATH, help="A sidecar to take the head from.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--dtype", default="float32", show_default=True, type=click.Choice(["float32", "bfloat16", "float16"]))
@click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads. [default: 1 for small models]")
@output_options
def command(
    path: Path,
    prompt: str,
    k: int,
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    ignore_eos: bool,
    head: Path | None,
    device: str,
    dtype: str,
    threads: int | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Generate text from a prompt, streamed. With --k the head drafts; the text is the same either way."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.verifying import load

    ckpt = open_checkpoint(path)
    model = load(ckpt, open_checkpoint(head) if head else None, device, dtype, threads)
    from mtptools.decoder.acceptance import total
    from mtptools.decoder.sampling import Sampling
    from mtptools.decoder.speculate import decode_plain, decode_speculative
    from mtptools.decoder.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids, stream = tokenizer.encode(prompt), tokenizer.stream()
    show = not (as_json or quiet)

    def on_tokens(new: list[int]) -> None:
        if show:
            click.echo(stream.push(new), nl=False)

    sampling = Sampling(temperature, top_k, top_p, seed)
    stop = () if ignore_eos else tuple(tokenizer.stop_ids)
    if k:
        trace = decode_speculative(model, ids, tokens, k, sampling=sampling, stop=stop, on_tokens=on_tokens)
    else:
        trace = decode_plain(model, ids, tokens, sampling=sampling, stop=stop, on_tokens=on_tokens)
    if show:
        click.echo(stream.close())
    data = {
        "text": tokenizer.decode(trace.tokens),
        "tokens": trace.tokens,
        "tokens_per_second": trace.tokens_per_second,
        "acceptance": total(k, [trace.drafts]).to_json() if k else None,
    }
    summary = f"{len(trace.tokens)} tokens, {trace.tokens_per_second:.1f} tokens/s"
    if k:
        counts = total(k, [trace.drafts])
        positions = " ".join(f"{value:.0%}" for value in counts.per_position)
        summary += (
            f", accepted {counts.rate:.0%} of drafts (by position {positions}), mean length {counts.mean_length:.2f}"
        )
    note(summary, quiet=quiet or as_json)
    emit(data, "", as_json=as_json, quiet=quiet)
