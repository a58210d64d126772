"""Running the levels of verify, for the verb itself and for --verify of the writing verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.output import progress, status
from mtptools.decoder import undecodable
from mtptools.errors import (
    CodecError,
    IncompatibleError,
    InputError,
    MissingExtraError,
    NoDecoderError,
    UsageError,
    typed,
)
from mtptools.families.runtimes import RUNTIMES
from mtptools.head import is_sidecar
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from mtptools.prompts import builtin_prompts, load_prompts
from mtptools.report.verification import Threshold, Verification
from mtptools.tokens import tokenizer_facts

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.model import Model
    from mtptools.decoder.recorder import Recorder
    from mtptools.decoder.sampling import Sampling
    from mtptools.decoder.tokenizer import Tokenizer

__all__ = [
    "after_graft",
    "after_prune",
    "after_quantize",
    "load",
    "parse_ks",
    "require_torch",
    "run",
    "static_check",
    "with_breakers",
]

SMALL_MODEL: Final = 200_000_000  # bytes
DEFAULT_TOKENS: Final = 64
MOST: Final = 64
DEFAULT_KS: Final = (1, 2, 3)
Record = tuple[bool, dict[str, Any], str]


def parse_ks(text: str) -> tuple[int, ...]:
    """ "1,2,3" or "1..3" as numbers. Raises UsageError."""
    ks: tuple[int, ...] = ()
    try:
        for part in text.split(","):
            first, dots, last = part.partition("..")
            ks += tuple(range(int(first), min(int(last), MOST + 1) + 1)) if dots else (int(first),)
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1 or max(ks) > MOST:
        raise UsageError(f"{text!r} is not a list of draft lengths", where="--k", hint="--k 1,2,3 or 1..8 (1 to 64)")
    return tuple(sorted(set(ks)))


def require_torch() -> None:
    """Raises MissingExtraError where torch is not installed."""
    try:
        import torch  # noqa: F401  # only to say clearly what is missing
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", "decoder", "decoding") from error


def load(
    ckpt: Checkpoint,
    head: Checkpoint | None,
    device: str,
    dtype: str,
    threads: int | None,
    wiring: Mapping[str, Any] | None = None,
    recorder: Recorder | None = None,
) -> Model:
    """Load a model into the decoder. Raises NoDecoderError, and MissingExtraError without torch.

    threads  of the CPU; None is one for a small model, whose matrices are not worth sharing out, else torch's choice
    wiring   what to change of the family's own
    recorder  is told what matrices are multiplied with
    """
    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="mtptools verify without --parity checks what can be")
    if is_sidecar(ckpt):
        raise InputError(
            "a sidecar: there is no trunk in it to decode with",
            where=ckpt.path,
            hint=f"give the trunk, and --head {typed(ckpt.path)}",
        )
    require_torch()
    import torch

    from mtptools.decoder.load import family_wiring, load_model

    own = family_wiring(head or ckpt)
    if own.tap == "streams" and {"tap", "recycle"} & set(wiring or ()):
        raise UsageError("the head takes streams: there is one tap, and one state to go on from", hint="leave it out")
    if threads is None and ckpt.nbytes < SMALL_MODEL:
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
    changed = replace(own, **(wiring or {}))
    return load_model(ckpt, head=head, wiring=changed, device=device, dtype=dtype, recorder=recorder)


def with_breakers(sampling: Sampling, tokenizer: Tokenizer) -> Sampling:
    """The sampling with the tokenizer's ids of DRY's breakers, if DRY is on."""
    from mtptools.decoder.penalties import breaker_ids

    if not sampling.dry:
        return sampling
    return sampling.with_breakers(breaker_ids(tokenizer.decode([token]) for token in range(tokenizer.size)))


def run(
    ckpt: Checkpoint,
    *,
    parity: bool,
    trunk: Checkpoint | None = None,
    donor: Checkpoint | None = None,
    head: Checkpoint | None = None,
    alone: bool = False,
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
    sampling: Sampling | None = None,
    wiring: Mapping[str, Any] | None = None,
    probe: bool = False,
    quiet: bool = False,
) -> Verification:
    """L0 and L1, and with `parity` L2 to L4, if the decoder knows the family: `not_run` says so if not.

    alone     L0 and L1 are of `head` only: it is what was written, and the trunk is as it was
    sampling  of the sampled arm on all prompts; None: a default, on few
    wiring    what to change of the family's own;  probe  measure every other variant too
    """
    if head is not None:
        _require_tokenizer(ckpt, head)
    judged = head if head is not None and alone else ckpt
    with progress(judged.nbytes, "lineage", quiet=quiet) as done:
        found, static = lineage(judged, trunk, donor, done), validate(judged)
        if head is not None and not alone:
            found += [replace(one, against=f"{one.against} of the head") for one in lineage(head, None, None, done)]
            static = static.joined(validate(head), "head: ")
    out = Verification(judged.path.name, found, static, threshold=threshold or Threshold())
    out.runtimes = RUNTIMES.get(ckpt.family.name, ())
    if parity:
        out.not_run = undecodable(ckpt)
    if not parity or out.not_run:
        return out
    if donor is not None and donor.family.name != ckpt.family.name:
        what = f"family: {ckpt.family.name}, donor {donor.family.name}"
        raise IncompatibleError("the donor is another model", [what], where=donor.path, hint="take its own donor")
    try:
        _decode(
            out,
            ckpt,
            donor=donor,
            head=head,
            baseline=baseline,
            ks=ks,
            tokens=tokens,
            prompts=prompts,
            limit=limit,
            serial=serial,
            controls=controls,
            where=(device, dtype, threads, wiring),
            sampling=sampling,
            probe=probe,
            quiet=quiet,
        )
    except (InputError, CodecError) as error:
        if out.static.ok:
            raise
        out.not_run = str(error)  # what L1 found goes before: it says more
    return out


def _require_tokenizer(ckpt: Checkpoint, head: Checkpoint) -> None:
    """Ids of one tokenizer are other tokens in another. Raises IncompatibleError."""
    ours, theirs = tokenizer_facts(ckpt), tokenizer_facts(head)
    if ours is not None and theirs is not None and ours.digest != theirs.digest:
        what = f"tokenizer: trunk {ours.size} tokens {ours.digest[:12]}, head {theirs.size} tokens {theirs.digest[:12]}"
        raise IncompatibleError("the head is of another model", [what], where=head.path, hint="take its own head")


def _decode(
    out: Verification,
    ckpt: Checkpoint,
    *,
    donor: Checkpoint | None,
    head: Checkpoint | None,
    baseline: Path | None,
    ks: Sequence[int],
    tokens: int,
    prompts: Path | None,
    limit: int | None,
    serial: bool,
    controls: bool,
    where: tuple[str, str, int | None, Mapping[str, Any] | None],
    sampling: Sampling | None,
    probe: bool,
    quiet: bool,
) -> None:
    """L2 to L4, into `out`."""
    texts = (load_prompts(prompts) if prompts is not None else builtin_prompts())[:limit]
    if sampling is not None and sampling.is_plain:
        raise UsageError("at temperature 0 these sampling options change nothing", hint="--temperature 0.8 --seed 1")
    require_torch()
    from mtptools.decoder.tokenizer import load_tokenizer

    # What can be wrong with little is found out before weights are loaded.
    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids = [tokenizer.encode(text) for text in texts]
    before = read_baseline(baseline, ks, tokens, ids) if baseline is not None else None
    model = load(ckpt, head, *where)
    from mtptools.decoder.run import SAMPLED, SAMPLED_PROMPTS, measure, verify_model
    from mtptools.decoder.sampling import GREEDY

    modes = ("fast", "serial") if serial else ("fast",)
    samplings, sampled_prompts = (GREEDY, SAMPLED), SAMPLED_PROMPTS
    if sampling is not None:
        samplings, sampled_prompts = (GREEDY, with_breakers(sampling, tokenizer)), len(ids)
    with status(quiet=quiet) as say:
        out.decoder = verify_model(
            model,
            ids,
            ks,
            tokens,
            modes=modes,
            samplings=samplings,
            sampled_prompts=sampled_prompts,
            controls=controls,
            probing=probe,
            progress=say,
        )
    if donor is not None:
        # A sidecar has no trunk of its own: its head is measured on this one.
        with status(quiet=quiet) as say:
            say(f"baseline: {donor.path.name}")
            other = load(ckpt, donor, *where) if is_sidecar(donor) else load(donor, None, *where)
            out.baseline_acceptance = measure(other, ids, ks, tokens)
        out.baseline = donor.path.name
    if before is not None and baseline is not None:
        out.baseline, out.baseline_acceptance = baseline.name, before


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
    except OSError as error:
        raise InputError(f"cannot read the report: {error.strerror or error}", where=path, hint=hint) from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError("not a report with acceptance in it", where=path, hint=hint) from error
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


def after_quantize(source: Checkpoint, *, quiet: bool) -> Callable[[Path], Record]:
    """All levels of a written output with a quantized head, measured against its source; a sidecar has no trunk."""

    def check(path: Path) -> Record:
        out = open_checkpoint(path, generic=source.generic)
        if is_sidecar(source):
            return _record(run(out, parity=False, quiet=True))
        return _record(run(out, parity=True, trunk=source, donor=source, quiet=quiet))

    return check


def after_prune(
    source: Checkpoint, trunk: Checkpoint | None, *, judged: bool = False, quiet: bool
) -> Callable[[Path], Record]:
    """All levels of a written output with a reduced head, or with the whole one again, measured against its source.

    A sidecar is decoded on the trunk of its source, or on one that was given.

    judged  what it loses was measured and accepted: only a dead head fails
    """
    threshold = Threshold(relative=0.0) if judged else Threshold()

    def check(path: Path) -> Record:
        out = open_checkpoint(path)
        holder = source if not is_sidecar(source) else trunk
        if holder is None:
            return _record(run(out, parity=False, donor=source, quiet=quiet))
        if not is_sidecar(out):
            return _record(run(out, parity=True, trunk=source, donor=source, threshold=threshold, quiet=quiet))
        return _record(run(holder, parity=True, head=out, alone=True, donor=source, threshold=threshold, quiet=quiet))

    return check


def after_graft(trunk: Checkpoint, donor: Checkpoint, *, quiet: bool) -> Callable[[Path], Record]:
    """All levels of a written graft, measured against its donor."""

    def check(path: Path) -> Record:
        out = open_checkpoint(path, generic=trunk.generic)
        return _record(run(out, parity=True, trunk=trunk, donor=donor, quiet=quiet))

    return check
