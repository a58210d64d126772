"""Running the levels of verify, for the verb itself and for --verify of the writing verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.output import progress, status
from mtptools.decoder import DIALECTS, FAMILIES
from mtptools.errors import InputError, MissingExtraError, UsageError
from mtptools.head import is_sidecar
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from mtptools.prompts import builtin_prompts, load_prompts
from mtptools.report.verification import Threshold, Verification

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.model import Model

__all__ = ["after_graft", "load", "parse_ks", "run", "static_check"]

SMALL_MODEL: Final = 200_000_000  # bytes
DEFAULT_TOKENS: Final = 64
DEFAULT_KS: Final = (1, 2, 3)
Record = tuple[bool, dict[str, Any], str]


def parse_ks(text: str) -> tuple[int, ...]:
    """ "1,2,3" as numbers. Raises UsageError."""
    try:
        ks = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1 or max(ks) > 64:
        raise UsageError(f"{text!r} is not a list of draft lengths", where="--k", hint="--k 1,2,3 (1 to 64)")
    return tuple(sorted(ks))


def load(ckpt: Checkpoint, head: Checkpoint | None, device: str, dtype: str, threads: int | None) -> Model:
    """Load a model into the decoder. Raises MissingExtraError without torch.

    threads  of the CPU; None is one for a small model, whose matrices are not worth sharing out, else torch's choice
    """
    try:
        import torch

        from mtptools.decoder.load import load_model
        from mtptools.decoder.mtp_head import HeadWiring
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "decoder", "decoding") from error
    stated = (head or ckpt).family.wiring
    wiring = HeadWiring(stated.concat, stated.tap, stated.recycle, stated.mask_first)
    if threads is None and ckpt.nbytes < SMALL_MODEL:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    return load_model(ckpt, head=head, wiring=wiring, device=device, dtype=dtype)


def run(
    ckpt: Checkpoint,
    *,
    parity: bool,
    trunk: Checkpoint | None = None,
    donor: Checkpoint | None = None,
    head: Checkpoint | None = None,
    baseline: Path | None = None,
    ks: Sequence[int] = DEFAULT_KS,
    tokens: int = DEFAULT_TOKENS,
    prompts: Path | None = None,
    limit: int | None = None,
    threshold: Threshold | None = None,
    serial: bool = False,
    controls: bool = True,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int | None = None,
    quiet: bool = False,
) -> Verification:
    """L0 and L1, and with `parity` L2 to L4."""
    with progress(ckpt.nbytes, "lineage", quiet=quiet) as done:
        found = lineage(ckpt, trunk, donor, done)
    out = Verification(ckpt.path.name, found, validate(ckpt), threshold=threshold or Threshold())
    if not parity:
        return out
    texts = (load_prompts(prompts) if prompts is not None else builtin_prompts())[:limit]
    where = (device, dtype, threads)
    model = load(ckpt, head, *where)
    from mtptools.decoder.run import measure, verify_model
    from mtptools.decoder.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids = [tokenizer.encode(text) for text in texts]
    before = read_baseline(baseline, ks, tokens, ids) if baseline is not None else None
    modes = ("fast", "serial") if serial else ("fast",)
    with status(quiet=quiet) as say:
        out.decoder = verify_model(model, ids, ks, tokens, modes=modes, controls=controls, progress=say)
    if donor is not None:
        # A sidecar has no trunk of its own: its head is measured on this one.
        with status(quiet=quiet) as say:
            say(f"baseline: {donor.path.name}")
            other = load(ckpt, donor, *where) if is_sidecar(donor) else load(donor, None, *where)
            out.baseline_acceptance = measure(other, ids, ks, tokens)
        out.baseline = donor.path.name
    if before is not None and baseline is not None:
        out.baseline, out.baseline_acceptance = baseline.name, before
    return out


def read_baseline(path: Path, ks: Sequence[int], tokens: int, prompts: Sequence[Sequence[int]]) -> list[Acceptance]:
    """Acceptance per k of an earlier report (`verify --parity --json`) of the same prompts. Raises InputError."""
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.report import digest_prompts

    hint = "make one with the same flags: mtptools verify DONOR --parity --json > report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))["decoder"]
        rows = {
            int(row["k"]): Acceptance(
                int(row["k"]),
                tuple(int(n) for n in row["drafted"]),
                tuple(int(n) for n in row["accepted"]),
                int(row["steps"]),
                int(row["emitted"]),
            )
            for row in report["acceptance"]
        }
        same = (report["tokens"], report["prompts_digest"]) == (tokens, digest_prompts(prompts))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a report with acceptance in it ({error})", where=path, hint=hint) from error
    if not same:
        raise InputError("the report was made with other prompts or another --tokens", where=path, hint=hint)
    missing = [k for k in ks if k not in rows or not rows[k].steps]
    if missing:
        raise InputError(f"the report says nothing of k = {', '.join(map(str, missing))}", where=path, hint=hint)
    return [rows[k] for k in ks]


def _record(result: Verification) -> Record:
    data = result.to_json()
    return data["ok"], data, result.render()


def static_check(path: Path, *, generic: bool = False) -> Record:
    """L0 and L1 of a written output that has no trunk, or no head, to decode with."""
    return _record(run(open_checkpoint(path, generic=generic), parity=False, quiet=True))


def after_graft(trunk: Checkpoint, donor: Checkpoint, *, quiet: bool) -> Callable[[Path], Record]:
    """All levels of a written graft, measured against its donor; no decoding of what the decoder does not know."""
    known = trunk.family.name in FAMILIES and trunk.dialect in DIALECTS

    def check(path: Path) -> Record:
        out = open_checkpoint(path, generic=trunk.generic)
        passed, data, text = _record(run(out, parity=known, trunk=trunk, donor=donor, quiet=quiet))
        if not known:
            data["not_run"] = f"L2 to L4: the decoder does not know {trunk.family.title} in the {trunk.dialect} dialect"
            text += f"\nnot run: {data['not_run']}"
        return passed, data, text

    return check
