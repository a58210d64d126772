"""mtptools families"""

from __future__ import annotations

import click

from mtptools.cli.options import examples, output_options
from mtptools.cli.output import emit, table

__all__ = ["command"]

COLUMNS = ("name", "title", "gguf_arch", "depth_field", "head_prefix", "concat", "tap", "recycle", "decoder")


@click.command(epilog=examples("mtptools families", "mtptools families -v", "mtptools families --json"))
@click.option("--markdown", "as_markdown", is_flag=True, help="Print docs/families.md.")
@output_options
def command(as_markdown: bool, as_json: bool, quiet: bool, verbose: bool) -> None:
    """List the known architectures: names in each dialect, wiring, operations, decoder support."""
    from mtptools.decoder import FAMILIES
    from mtptools.families.listing import markdown, rows

    data = rows(FAMILIES)
    if as_markdown:
        emit(data, markdown(FAMILIES).rstrip("\n"), as_json=as_json, quiet=quiet)
        return
    cells = [["yes" if row[c] is True else "" if row[c] is False else row[c] for c in COLUMNS] for row in data]
    text = table(cells, header=COLUMNS)
    if verbose:
        text += "".join(f"\n\n{row['name']}: {'; '.join(row['operations'])}\n  {row['evidence']}" for row in data)
    emit(data, text, as_json=as_json, quiet=quiet)
