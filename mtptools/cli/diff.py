"""mtptools diff"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.fetching import fetched
from mtptools.cli.options import PATH, examples, output_options
from mtptools.cli.output import emit, progress

__all__ = ["command"]

SHOWN = 40


@click.command(epilog=examples("mtptools diff before.gguf after.gguf", "mtptools diff a b --json"))
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@output_options
def command(a: Path, b: Path, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Compare two checkpoints, tensors and metadata. Exit code 0 when equal, 1 when not.

    Bytes are compared, not only names. Keys of mtptools' own receipt do not count.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.ops.diff import diff

    left, right = open_checkpoint(a), open_checkpoint(b)
    both = [name for name in left if name in right]
    fetched((blob for name in both for one in (left, right) for blob in one[name].blobs), quiet=quiet or as_json)
    with progress(left.nbytes + right.nbytes, "compare", quiet=quiet) as done:
        result = diff(left, right, done)
    lines = [f"kept      {len(result.kept)} tensors"]
    lines += [f"renamed   {old} -> {new}" for old, new in result.renamed]
    lines += [f"recoded   {name}: {old} -> {new}" for name, old, new in result.recoded]
    for word, names in (("changed", result.changed), ("added", result.added), ("dropped", result.dropped)):
        shown = names if verbose else names[:SHOWN]
        lines += [f"{word:<9} {name}" for name in shown]
        if len(shown) < len(names):
            lines.append(f"{word:<9} … and {len(names) - len(shown)} more (-v lists all)")
    lines += [f"metadata  {c.key}: {_brief(c.before)} -> {_brief(c.after)}" for c in result.metadata]
    lines.append("equal" if result.equal else "different")
    emit(result.to_json(), "\n".join(lines), as_json=as_json, quiet=quiet)
    return 0 if result.equal else 1


def _brief(value: object) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
