"""What a card is made from, gathered and checked; and where it is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.output import progress
from mtptools.errors import InputError, MissingHeadError, SystemFailure, UsageError, typed
from mtptools.families.runtimes import READ, RUNTIMES
from mtptools.head import head_names
from mtptools.ops.artifact import artifact
from mtptools.receipt import load_beside
from mtptools.report.card import Card, Reader, card
from mtptools.report.loaded import HINT, about, load_report
from mtptools.tensors import read_blob

__all__ = ["check_places", "gathered", "head_sums", "rendered"]

# Who loads files of a dialect, of those whose sources were read.
LOADS: Final = {"gguf": ("llama.cpp",), "hf": ("vLLM", "SGLang", "transformers"), "mlx": ("mlx-vlm",)}
_CARD: Final = b"<!-- mtptools card -->"


def gathered(ckpt: Checkpoint, report: Path | None, bench: Path | None, sums: Path | None) -> Card:
    """Raises InputError where a report is none, or is of another file."""
    found = artifact(ckpt)
    verified = _kept(ckpt) if report is None else load_report(report)
    timed = None if bench is None else load_report(bench, "bench")
    for data, where in ((verified if report else None, report), (timed, bench)):
        if data is not None and (why := about(data, found)) is not None:
            raise InputError(
                f"not a report of this {ckpt.container} file: {why}",
                where=where,
                hint=f"mtptools verify {typed(ckpt.path)} --parity --json > report.json",
            )
    return Card(found, verified, timed, None if sums is None else sums.name, _readers(ckpt))


def rendered(told: Card, where: Path) -> str:
    """The card's text. Raises InputError where a report lacks what one of its schema has."""
    try:
        return card(told)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(f"the report is damaged ({type(error).__name__}: {error})", where=where, hint=HINT) from error


def _kept(ckpt: Checkpoint) -> dict[str, Any] | None:
    """The verification that the receipt keeps (`--verify` of the verb that wrote it)."""
    kept = (load_beside(ckpt) or {}).get("verification")
    return kept if isinstance(kept, dict) and "lineage" in kept else None


def _readers(ckpt: Checkpoint) -> list[Reader]:
    try:
        family = ckpt.family
    except InputError:
        return []
    ours = (family.wiring.tap, family.wiring.recycle, family.wiring.mask_first)
    return [
        Reader(one.runtime, READ[one.runtime], (one.tap, one.recycle, one.mask_first) == ours)
        for one in RUNTIMES.get(family.name, ())
        if one.runtime in LOADS[ckpt.dialect]
    ]


def head_sums(ckpt: Checkpoint, *, quiet: bool) -> dict[str, str]:
    """sha256 of the stored bytes of every tensor of the head, by name. Raises MissingHeadError."""
    names = sorted(head_names(ckpt))
    if not names:
        raise MissingHeadError("no head to make digests of", where=ckpt.path, hint="leave out --sums")
    out = {}
    with progress(sum(ckpt[name].nbytes for name in names), "sha256", quiet=quiet) as done:
        for name in names:
            state = hashlib.sha256()
            for blob in ckpt[name].chunks():
                state.update(read_blob(blob, name))
                done(blob.nbytes)
            out[name] = state.hexdigest()
    return out


def check_places(out: Path | None, sums: Path | None) -> None:
    """A card replaces an earlier card, and sums earlier sums: nothing else. Raises UsageError, SystemFailure."""
    for option, path in (("-o", out), ("--sums", sums)):
        if path is None:
            continue
        if not (path.is_file() or not path.exists()) or not path.parent.is_dir():
            raise UsageError("that cannot be written there", where=path, hint=f"{option} FILE in a folder there is")
        try:
            start = path.read_bytes()[:80] if path.exists() else b""
        except OSError as error:
            raise SystemFailure(f"cannot be replaced: {error.strerror or error}", where=path) from error
        ours = start.startswith(_CARD) if option == "-o" else _is_sums(start)
        if start and not ours:
            hint = f"append with: mtptools card … >> {typed(path)}" if option == "-o" else "give another name"
            raise UsageError("another file stands there", where=path, hint=hint)


def _is_sums(start: bytes) -> bool:
    return len(start) > 66 and start[64:66] == b"  " and all(byte in b"0123456789abcdef" for byte in start[:64])
