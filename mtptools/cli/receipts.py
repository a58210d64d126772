"""Finding a receipt and holding the output, its sources and its signature against it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.output import progress
from mtptools.errors import InputError, typed
from mtptools.ops.receipt_check import Finding, check_inside, check_parts, check_receipt, check_sources
from mtptools.receipt import load_beside, load_inside, receipt_path

__all__ = ["checked", "record_of", "signature"]


def record_of(ckpt: Checkpoint) -> tuple[dict[str, Any], bool]:
    """The receipt beside a checkpoint, else the one inside it, and whether it is the first. Raises InputError."""
    expected = receipt_path(ckpt.path, ckpt.path.is_dir())
    full = load_beside(ckpt)
    if (record := load_inside(ckpt) if full is None else full) is not None:
        check_parts(record, ckpt.path if full is None else expected)
        return record, full is not None
    raise InputError(
        f"no receipt: neither {expected.name} nor one inside",
        where=ckpt.path,
        hint=f"outputs of mtptools have one; to compare with sources: mtptools verify {typed(ckpt.path)} --trunk TRUNK "
        "--against DONOR",
    )


def checked(
    ckpt: Checkpoint, record: dict[str, Any], sources: Sequence[Path], *, beside: bool, verify: bool, quiet: bool
) -> list[Finding]:
    found: list[Finding] = []
    if verify:
        with progress(sum(tensor.nbytes for tensor in ckpt.values()), "receipt", quiet=quiet) as done:
            found += (check_receipt if beside else check_inside)(ckpt, record, done)
    if sources:
        found += check_sources(record, [open_checkpoint(source) for source in sources])
    return found


def signature(ckpt: Checkpoint, key: Path | None, public_key: Path | None) -> dict[str, Any] | None:
    """Sign, or verify a signature, or both; None when neither was asked for. `wrong` says why it does not hold."""
    if key is None and public_key is None:
        return None
    from mtptools.cli.signing import sign, signature_path, verify_signature

    out: dict[str, Any] = {"path": signature_path(ckpt).name, "signed": False, "verified": None, "wrong": None}
    if key is not None:
        sign(ckpt, key)
        out["signed"] = True
    if public_key is not None:
        out["wrong"] = verify_signature(ckpt, public_key)
        out["verified"] = out["wrong"] is None
    return out
