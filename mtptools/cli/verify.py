"""mtptools verify"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mtptools.cli.options import (
    PATH,
    Running,
    device_options,
    examples,
    generic_option,
    output_options,
    sampling_options,
    wiring_options,
)
from mtptools.cli.output import emit, note
from mtptools.cli.report_options import check_reports, report_options, write_reports
from mtptools.cli.runtime_options import Asked, runtime_options
from mtptools.cli.stream_options import Streaming, stream_options
from mtptools.cli.verify_modes import PARITY_FLAGS, check_modes

if TYPE_CHECKING:
    from mtptools.decoder.sampling import Sampling

__all__ = ["PARITY_FLAGS", "command"]


@click.command(
    epilog=examples(
        "mtptools verify out.gguf",
        "mtptools verify out.gguf --parity --against donor.gguf",
        "mtptools verify out.gguf --parity --k 1,2,4 --tokens 128 --prompts mt_bench.jsonl --limit 8",
        "mtptools verify out.gguf --parity --temperature 1 --dry-multiplier 0.8",
        "mtptools verify out.gguf --parity --probe",
        "mtptools verify donor.gguf --parity --json > donor.json",
        "mtptools verify out.gguf --parity --baseline donor.json --min-acceptance 95%",
        "mtptools verify out.gguf --runtime llama.cpp --k 3",
        "mtptools verify out.gguf --parity --runtime http://127.0.0.1:8000 --html report.html",
        "mtptools verify huge.gguf --stream --text wiki.txt --k 3",
        "mtptools verify out.gguf --stream --text wiki.txt --against donor.gguf",
        "mtptools verify huge.gguf --stream --text wiki.txt --layers 0:20 --state /shared/run",
    )
)
@click.argument("path", type=PATH)
@click.option("--parity", is_flag=True, help="Decode: parity, acceptance and controls (L2 to L4).")
@click.option("--k", "k", default="1,2,3", show_default=True, help="Tokens drafted per step.")
@click.option("--tokens", default=64, show_default=True, type=click.IntRange(3, 100_000), help="Tokens per prompt.")
@click.option("--prompts", type=PATH, help="Text, one prompt a line, or JSONL. [default: a built-in set]")
@click.option("--limit", type=click.IntRange(1), help="Use the first N prompts.")
@click.option("--trunk", type=PATH, help="The trunk it was made from: compare bytes.")
@click.option("--against", type=PATH, help="The donor: compare the head's bytes and its acceptance.")
@click.option("--baseline", type=PATH, help="A report of an earlier run to measure acceptance against.")
@click.option("--min-acceptance", help="0.6: of first drafts; 95%: of the baseline. [default: 0.10 and 85%]")
@click.option("--head", type=PATH, help="A sidecar to take the head from.")
@click.option("--serial", is_flag=True, help="Also verify drafts one by one, the oracle of the fast mode.")
@stream_options
@runtime_options
@device_options
@sampling_options
@wiring_options
@click.option("--probe", is_flag=True, help="Measure every wiring that runtimes disagree on, best first.")
@generic_option
@report_options
@output_options
@click.pass_context
def command(
    ctx: click.Context,
    path: Path,
    parity: bool,
    k: str,
    tokens: int,
    prompts: Path | None,
    limit: int | None,
    trunk: Path | None,
    against: Path | None,
    baseline: Path | None,
    min_acceptance: str | None,
    head: Path | None,
    serial: bool,
    streaming: Streaming | None,
    runtime: Asked | None,
    running: Running,
    sampling: Sampling | None,
    wiring: dict[str, Any],
    probe: bool,
    generic: bool,
    html: Path | None,
    markdown: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Prove a checkpoint, in levels. Exit code 1 when any of them fails.

    L0 lineage (digests, receipts) and L1 static checks always run. --parity adds L2: plain and speculative decoding
    give the same logits bit for bit; L3: how often drafts are accepted; L4: faults put in on purpose must hurt.
    With sampling options L2 samples so, and L3 adds the acceptance of each way to choose drafts (generate --draft).
    --runtime adds L5: the artifact in llama.cpp or behind an address, with and without MTP, its text and ours compared.
    --stream instead reads a text in one pass, with one layer in memory at a time: L3 and L4 of a model of any size.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.command_line import command_line
    from mtptools.cli.verifying import parse_ks, run, run_one_pass
    from mtptools.errors import NoDecoderError, UsageError
    from mtptools.ops.artifact import artifact
    from mtptools.threshold import Threshold

    ks, threshold = parse_ks(k), Threshold.parse(min_acceptance)
    modes = {"parity": parity, "stream": streaming is not None, "runtime": runtime is not None}
    check_modes(ctx, [mode for mode, chosen in modes.items() if chosen])
    if sampling is not None and streaming is not None:
        raise UsageError("sampling options are of --parity: --stream takes none", hint="leave them out")
    if sampling is not None and not parity:
        raise UsageError("sampling options need --parity", hint="add --parity")
    if threshold.strict and baseline is None and against is None and runtime is None:
        raise UsageError("a relative --min-acceptance needs something to compare with", hint="add --against DONOR")
    if baseline is not None and against is not None:
        raise UsageError("--against and --baseline are two baselines", hint="give one of them")
    check_reports(html, markdown)
    checkpoint = open_checkpoint(path, generic=generic)
    beside: dict[str, Any] = {
        "trunk": open_checkpoint(trunk, generic=generic) if trunk else None,
        "donor": open_checkpoint(against, generic=generic) if against else None,
        "head": open_checkpoint(head, generic=generic) if head else None,
    }
    shared: dict[str, Any] = {
        "prompts": prompts,
        "limit": limit,
        "threshold": threshold,
        "running": running,
        "wiring": wiring,
        "quiet": quiet or as_json,
    }
    if streaming is not None:
        passed = run_one_pass(checkpoint, streaming, **beside, **shared, k=max(ks))
        if isinstance(passed, dict):
            emit(passed, f"next: {passed['next']}", as_json=as_json, quiet=quiet)
            return 0
        result = passed
    else:
        result = run(
            checkpoint,
            **beside,
            **shared,
            parity=parity,
            baseline=baseline,
            ks=ks,
            tokens=tokens,
            serial=serial,
            sampling=sampling,
            probe=probe,
            runtime=runtime,
            verbose=verbose,
        )
    data = {**result.to_json(), "command": command_line(ctx), "artifact": artifact(checkpoint)}
    emit(data, result.render(), as_json=as_json, quiet=quiet)
    for written in write_reports(data, html, markdown):
        note(f"report: {written}", quiet=quiet or as_json)
    return 1 if data["failures"] else 0 if data["ok"] else NoDecoderError.exit_code
