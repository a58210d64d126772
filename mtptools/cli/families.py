"""mtptools families"""

from __future__ import annotations

import click

from mtptools.cli.options import examples, output_options
from mtptools.cli.output import emit, table

__all__ = ["command"]


@click.command(epilog=examples("mtptools families", "mtptools families --json"))
@output_options
def command(as_json: bool, quiet: bool, verbose: bool) -> None:
    """List the known architectures, with their names in each dialect and their wiring."""
    from mtptools.families import known_families

    data = [
        {
            "name": f.name,
            "title": f.title,
            "gguf_arch": f.gguf_arch,
            "hf_types": list(f.hf_types),
            "depth_field": ", ".join(f.hf_depth),
            "head_prefix": f.hf_head,
            "head_roles": [role.name for role in f.head],
            "concat": f.wiring.concat,
            "tap": f.wiring.tap,
            "recycle": f.wiring.recycle,
            "evidence": f.wiring.evidence,
        }
        for f in known_families()
    ]
    columns = ("name", "title", "gguf_arch", "depth_field", "head_prefix", "concat", "tap", "recycle")
    text = table([[row[c] for c in columns] for row in data], header=columns)
    if verbose:
        text += "".join(f"\n\n{row['name']}: {row['evidence']}" for row in data)
    emit(data, text, as_json=as_json, quiet=quiet)
