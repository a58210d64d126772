"""mtptools generate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtptools.cli.options import (
    PATH,
    Running,
    device_options,
    examples,
    output_options,
    sampling_options,
    wiring_options,
)
from mtptools.cli.output import emit, note, stream
from mtptools.errors import UsageError

if TYPE_CHECKING:
    from mtptools.decoder.sampling import Sampling

__all__ = ["command"]


@click.command(
    epilog=examples(
        'mtptools generate model.gguf -p "Once upon a time"',
        'mtptools generate model.gguf -p "Once upon a time" --k 3 --tokens 200',
        'mtptools generate trunk.gguf --head mtp.gguf -p "def main():" --k 2 --temperature 0.7 --seed 4',
        'mtptools generate model.gguf -p "It was a dark night" --k 3 --temperature 1 --min-p 0.05 --dry-multiplier 0.8',
    )
)
@click.argument("path", type=PATH)
@click.option("-p", "--prompt", required=True, help="Text to go on from.")
@click.option(
    "--k", default=0, show_default=True, type=click.IntRange(0, 64), help="Tokens drafted per step; 0: plain."
)
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(1, 1_000_000), help="Tokens at most.")
@sampling_options
@click.option(
    "--acceptance",
    type=click.Choice(["match", "rejection"]),
    help="match: the very text of plain decoding; rejection: other text, as likely.  [default: match]",
)
@click.option(
    "--draft",
    type=click.Choice(["sampler", "chain", "argmax"]),
    help="Draft by the same sampler, its most probable token, or the head's.  [default: sampler]",
)
@wiring_options
@click.option("--ignore-eos", is_flag=True, help="Go on after an end-of-text token.")
@click.option("--head", type=PATH, help="A sidecar to take the head from.")
@device_options
@output_options
def command(
    path: Path,
    prompt: str,
    k: int,
    tokens: int,
    sampling: Sampling | None,
    acceptance: str | None,
    draft: str | None,
    wiring: dict[str, Any],
    ignore_eos: bool,
    head: Path | None,
    running: Running,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Generate text from a prompt, streamed. With --k the head drafts; the text is the same, except by rejection."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.loading import loaded, require_decodable, require_head, require_room
    from mtptools.cli.verifying import with_breakers

    if not k and (acceptance or draft):
        name = "acceptance" if acceptance else "draft"
        raise UsageError(f"--{name} is about drafts, and nothing is drafted", hint="add --k 3")
    if not k and wiring:
        raise UsageError("how the head is connected matters to drafts, and nothing is drafted", hint="add --k 3")
    ckpt, sidecar = open_checkpoint(path), open_checkpoint(head) if head else None
    running.check(ckpt.hparams.context_length)
    require_decodable(ckpt)
    if k:
        require_head(sidecar or ckpt)
    from mtptools.decoder.acceptance import total
    from mtptools.decoder.sampling import GREEDY
    from mtptools.decoder.speculate import decode_plain, decode_speculative
    from mtptools.decoder.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids, pieces = tokenizer.encode(prompt), tokenizer.stream()
    show = not as_json  # the text is what was asked for: --quiet leaves out the note

    def on_tokens(new: list[int]) -> None:
        if show:
            stream(pieces.push(new))

    chain = with_breakers(sampling or GREEDY, tokenizer)
    stop = () if ignore_eos else tuple(tokenizer.stop_ids)
    rule, choice = acceptance or "match", draft or "sampler"
    room = {"texts": require_room(ckpt, [ids], tokens), "k": k, "quiet": quiet or as_json, "verbose": verbose}
    with loaded(ckpt, sidecar, running, wiring, **room) as (model, plan):
        if k:
            trace = decode_speculative(
                model, ids, tokens, k, sampling=chain, acceptance=rule, draft=choice, stop=stop, on_tokens=on_tokens
            )
        else:
            trace = decode_plain(model, ids, tokens, sampling=chain, stop=stop, on_tokens=on_tokens)
    if show:
        stream(f"{pieces.close()}\n")
    data = {
        "text": tokenizer.decode(trace.tokens),
        "prompt_tokens": ids,
        "tokens": trace.tokens,
        "tokens_per_second": trace.tokens_per_second,
        "sampling": str(chain),
        "acceptance": {"rule": rule, "draft": choice, **total(k, [trace.drafts]).to_json()} if k else None,
        "memory": plan.to_json(),
    }
    summary = f"{len(trace.tokens)} tokens, {trace.tokens_per_second:.1f} tokens/s"
    if k:
        counts = total(k, [trace.drafts])
    if k and not trace.drafts.drafted:
        summary += ", nothing drafted"
    elif k:
        tried = zip(counts.per_position, counts.drafted, strict=True)
        positions = " ".join(f"{value:.0%}" for value, drafted in tried if drafted)
        summary += f", accepted {counts.rate:.0%} of drafts (by position {positions}), mean length "
        summary += f"{counts.mean_length:.2f}" + ("" if chain.is_plain else f" (draft {choice}, acceptance {rule})")
    note(summary, quiet=quiet or as_json)
    emit(data, "", as_json=as_json, quiet=quiet)
