"""mtptools validate"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.options import PATH, examples, output_options
from mtptools.cli.output import emit

__all__ = ["command"]


@click.command(epilog=examples("mtptools validate model.gguf", "mtptools validate ./my-quant --json"))
@click.argument("path", type=PATH)
@output_options
def command(path: Path, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Check what the config declares against what the file holds. Exit code 1 when a check fails."""
    from mtptools.checkpoint import open_checkpoint
    from mtptools.ops.validate import CHECKS, validate

    result = validate(open_checkpoint(path))
    lines = []
    for finding in result.findings:
        lines.append(f"{finding.severity}: [{finding.check}] {finding.what}")
        lines.append(f"    evidence: {finding.evidence}")
        lines.append(f"    fix: {finding.fix}")
    if verbose:
        lines += [f"pass: [{check.id}] {check.asks}" for check in CHECKS if check.id in result.passed]
    verdict = "valid" if result.ok else "not valid"
    lines.append(f"{path}: {verdict}, {len(result.passed)} of {len(CHECKS)} checks without a finding")
    emit(result.to_json(), "\n".join(lines), as_json=as_json, quiet=quiet)
    return 0 if result.ok else 1
