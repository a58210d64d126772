"""mtptools bench"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mtptools.cli.command_line import command_line
from mtptools.cli.options import PATH, Running, device_options, examples, output_options, wiring_options
from mtptools.cli.output import emit, note, status
from mtptools.cli.report_options import check_reports, report_options, write_reports

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools bench model.gguf",
        "mtptools bench model.gguf --k 1..4 --prompts spec_bench.jsonl --limit 26 --plot bench.svg",
        "mtptools bench trunk.gguf --head mtp.gguf --k 1,2,4 --dtype bfloat16 --threads 8 --json > bench.json",
    )
)
@click.argument("path", type=PATH)
@click.option("--k", "k", default="1..8", show_default=True, help="Tokens drafted per step: 1..8 or 1,2,4.")
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(2, 100_000), help="Tokens per prompt.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 1000), help="Runs of each; medians count.")
@click.option("--prompts", type=PATH, help="Text, one prompt a line, or JSONL. [default: a built-in set]")
@click.option("--limit", type=click.IntRange(1), help="Use N prompts, one of each category in turn.")
@click.option("--head", type=PATH, help="A sidecar to take the head from.")
@device_options
@wiring_options
@click.option("--plot", "picture", type=PATH, help="Draw it: FILE.svg or FILE.png; one that is there is replaced.")
@report_options
@output_options
def command(
    path: Path,
    k: str,
    tokens: int,
    runs: int,
    prompts: Path | None,
    limit: int | None,
    head: Path | None,
    running: Running,
    wiring: dict[str, Any],
    picture: Path | None,
    html: Path | None,
    markdown: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Measure what the head gains: acceptance and speed per k, against plain decoding of the same prompts.

    The output of every run is compared with plain decoding's, bit for bit. Exit code 1 when one differs.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.loading import loaded, require_decodable, require_head, require_room
    from mtptools.cli.verifying import parse_ks
    from mtptools.ops.artifact import artifact
    from mtptools.prompts import read_prompts, spread
    from mtptools.report.bench import render, to_json

    check_reports(html, markdown)
    ks = parse_ks(k)
    if picture is not None:
        from mtptools.report.plot import check_plot, plot, write_plot

        check_plot(picture)
    ckpt, chosen = open_checkpoint(path), spread(read_prompts(prompts), limit)
    sidecar = open_checkpoint(head) if head else None
    running.check(ckpt.hparams.context_length)
    require_decodable(ckpt)
    require_head(sidecar or ckpt)
    from mtptools.decoder.bench import bench_model, check_context
    from mtptools.decoder.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids, categories = [tokenizer.encode(one.text) for one in chosen], [one.category for one in chosen]
    check_context(ckpt.hparams.context_length, ids, categories, tokens)
    silent, longest = quiet or as_json, require_room(ckpt, ids, tokens)
    room = {"texts": longest, "k": max(ks), "quiet": silent, "verbose": verbose}
    with (
        loaded(ckpt, sidecar, running, wiring, **room) as (model, plan),
        status(quiet=silent) as say,
    ):
        bench = bench_model(model, ids, categories, ks, tokens, runs=runs, progress=say)
    data = to_json(bench, ckpt.path.name)
    data |= {"memory": plan.to_json(), "command": command_line(), "artifact": artifact(ckpt)}
    for record, one in zip(data["decoder"]["per_prompt"], chosen, strict=True):
        record["prompt"] = one.text
    emit(data, render(bench, ckpt.path.name), as_json=as_json, quiet=quiet)
    if picture is not None:  # last: whatever happens to a file, the measurement is printed
        write_plot(picture, plot(bench, ckpt.path.name, picture.suffix[1:].lower()))
        note(f"plot: {picture}", quiet=quiet or as_json)
    for written in write_reports(data, html, markdown):
        note(f"report: {written}", quiet=quiet or as_json)
    return 0 if data["ok"] else 1
