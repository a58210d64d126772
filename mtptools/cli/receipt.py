"""mtptools receipt"""

from __future__ import annotations

from pathlib import Path

import click

from mtptools.cli.options import PATH, examples, output_options
from mtptools.cli.output import emit

__all__ = ["command"]


@click.command(
    epilog=examples(
        "mtptools receipt out.gguf",
        "mtptools receipt out.gguf --verify",
        "mtptools receipt out.gguf --sources trunk-Q4_K_M.gguf --sources donor.gguf",
        "mtptools receipt ./out --sign --key key.pem",
        "mtptools receipt ./out --verify-signature --public-key public.pem --json",
    )
)
@click.argument("path", type=PATH)
@click.option("--verify", is_flag=True, help="Read everything again and compare it with every digest.")
@click.option("--sources", multiple=True, type=PATH, help="A file or folder it may have been made from; repeatable.")
@click.option("--sign", "signing", is_flag=True, help="Sign the output (OpenSSF model signing) with --key.")
@click.option("--key", type=PATH, help="Private key: elliptic curve, PEM.")
@click.option("--verify-signature", "signed", is_flag=True, help="Check the signature with --public-key.")
@click.option("--public-key", type=PATH, help="Public key: elliptic curve, PEM.")
@output_options
def command(
    path: Path,
    verify: bool,
    sources: tuple[Path, ...],
    signing: bool,
    key: Path | None,
    signed: bool,
    public_key: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> int:
    """Show what an output was made from. Exit code 1 when something is not what the receipt, or a signature, says.

    --verify finds changed, missing and extra tensors by their digests, and files that are gone.
    """
    from mtptools.checkpoint import open_checkpoint
    from mtptools.cli.receipts import checked, record_of, signature
    from mtptools.errors import UsageError
    from mtptools.report.receipt import receipt_json, receipt_text

    for flag, option, value in ((signing, "--sign", key), (signed, "--verify-signature", public_key)):
        name = "--key" if option == "--sign" else "--public-key"
        if flag != (value is not None):
            raise UsageError(f"{option} and {name} go together", hint=f"{option} {name} FILE.pem")
    ckpt = open_checkpoint(path)
    record, beside = record_of(ckpt)
    findings = checked(ckpt, record, sources, beside=beside, verify=verify, quiet=quiet or as_json)
    data = receipt_json(ckpt.path.name, record, findings, beside=beside, verified=verify)
    data["signature"] = signature(ckpt, key if signing else None, public_key if signed else None)
    if (wrong := (data["signature"] or {}).get("wrong")) is not None:
        data["failures"].append(f"signature: {wrong}")
        data["ok"] = False
    emit(data, receipt_text(data, verbose=verbose), as_json=as_json, quiet=quiet)
    return 0 if data["ok"] else 1
