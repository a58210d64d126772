"""mtptools validate"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.options import PATH, examples, generic_option, output_options
from mtptools.cli.output import emit

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools validate model.gguf",
        "mtptools validate ./my-quant --json",
        "mtptools validate ./headers/config.json   # no weights: config.json, and the index beside it",
    )
)
@click.argument("path", type=PATH)
@generic_option
@output_options
def command(path: Path, generic: bool, as_json: bool, quiet: bool, verbose: bool) -> int:
    """Check what the config declares against what the file holds. Exit code 1 when a check fails.

    config.json, with the index beside it or without, is enough for what can be told from names.
    """
    from mtptools.checkpoint import open_declared
    from mtptools.ops.validate import CHECKS, validate

    result = validate(open_declared(path, generic=generic))
    lines = []
    for finding in result.findings:
        lines.append(f"{finding.severity}: [{finding.check}] {finding.what}")
        lines.append(f"    evidence: {finding.evidence}")
        lines.append(f"    fix: {finding.fix}")
    if verbose:
        lines += [f"pass: [{check.id}] {check.asks}" for check in CHECKS if check.id in result.passed]
    if result.skipped and result.passed:
        lines.append(f"not checked: {', '.join(result.skipped)}")
    lines.append(result.head)
    verdict = "valid" if result.ok else "not valid"
    ran = len(CHECKS) - len(result.skipped)
    lines.append(f"{path}: {verdict}" + (f", {len(result.passed)} of {ran} checks without a finding" if ran else ""))
    emit(result.to_json(), "\n".join(lines), as_json=as_json, quiet=quiet)
    return 0 if result.ok else 1
