"""mtptools card"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from mtptools.cli.options import PATH, examples, generic_option, output_options
from mtptools.cli.output import emit, note

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools verify out.gguf --parity --against donor.gguf --json > verify.json",
        "mtptools card out.gguf --report verify.json --sums head.sha256 -o mtp.md",
        "mtptools card out.gguf --report verify.html --bench bench.json >> README.md",
    )
)
@click.argument("path", type=PATH)
@click.option("--report", type=PATH, help="What verify --json, or --html, wrote. [default: what the receipt keeps]")
@click.option("--bench", type=PATH, help="What bench --json wrote, for speed and acceptance per prompt.")
@click.option("--sums", type=PATH, help="Write sha256 of every tensor of the head there, as sha256sum writes.")
@click.option(
    "-o", "--output", "out", type=PATH, help="Write the section there; an earlier one goes. [default: stdout]"
)
@generic_option
@output_options
def command(
    path: Path,
    report: Path | None,
    bench: Path | None,
    sums: Path | None,
    out: Path | None,
    generic: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Write the section of a model card: donor and revision, head, acceptance, what was proved and what was not.

    Every number is from the file, its receipt or the report. Exit code 1 when the report is of a failure.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.cards import check_places, gathered, head_sums, rendered
    from mtptools.placing import put

    check_places(out, sums)
    ckpt = open_checkpoint(path, generic=generic)
    told = gathered(ckpt, report, bench, sums)
    text = rendered(told, report or path)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "artifact": told.artifact,
        "ok": told.report is not None and bool(told.report.get("ok")),
        "markdown": text,
    }
    if sums is not None:
        data["sums"] = head_sums(ckpt, quiet=quiet or as_json)
        put(sums, "".join(f"{digest}  {name}\n" for name, digest in data["sums"].items()))
        note(f"sums: {sums}", quiet=quiet or as_json)
    if out is not None:
        put(out, text)
        note(f"card: {out}", quiet=quiet or as_json)
    emit(data, "" if out is not None else text.rstrip("\n"), as_json=as_json, quiet=quiet)
    return 1 if (told.report or {}).get("failures") else 0


SCHEMA: Final = 1
