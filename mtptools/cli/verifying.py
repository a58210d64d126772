"""Running the levels of verify, for the verb itself and for --verify of the writing verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.loading import loaded, require_torch
from mtptools.cli.options import Running
from mtptools.cli.output import progress, status
from mtptools.cli.stream_options import Streaming
from mtptools.cli.streaming import run_stream
from mtptools.decoder import undecodable
from mtptools.errors import (
    CodecError,
    IncompatibleError,
    InputError,
    UsageError,
)
from mtptools.families.runtimes import RUNTIMES
from mtptools.head import head_names, is_sidecar
from mtptools.ops.lineage import lineage
from mtptools.ops.validate import validate
from mtptools.prompts import builtin_prompts, load_prompts
from mtptools.report.threshold import Threshold
from mtptools.report.verification import Verification
from mtptools.tokens import tokenizer_facts

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.sampling import Sampling
    from mtptools.decoder.tokenizer import Tokenizer

__all__ = [
    "after_graft",
    "after_prune",
    "after_quantize",
    "parse_ks",
    "run",
    "run_one_pass",
    "static_check",
    "with_breakers",
]

CPU: Final = Running("cpu", "float32", None, False, None)
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
    running: Running = CPU,
    sampling: Sampling | None = None,
    wiring: Mapping[str, Any] | None = None,
    probe: bool = False,
    quiet: bool = False,
    verbose: bool = False,
) -> Verification:
    """L0 and L1, and with `parity` L2 to L4, if the decoder knows the family: `not_run` says so if not.

    alone     L0 and L1 are of `head` only: it is what was written, and the trunk is as it was
    sampling  of the sampled arm on all prompts; None: a default, on few
    wiring    what to change of the family's own;  probe  measure every other variant too
    """
    out = _levels_0_and_1(ckpt, trunk, donor, head, alone=alone, quiet=quiet)
    out.threshold = threshold or Threshold()
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
            running=running,
            wiring=wiring,
            sampling=sampling,
            probe=probe,
            quiet=quiet,
            verbose=verbose,
        )
    except (InputError, CodecError) as error:
        if out.static.ok:
            raise
        out.not_run = str(error)  # what L1 found goes before: it says more
    return out


def run_one_pass(
    ckpt: Checkpoint,
    streaming: Streaming,
    *,
    trunk: Checkpoint | None = None,
    donor: Checkpoint | None = None,
    head: Checkpoint | None = None,
    prompts: Path | None = None,
    limit: int | None = None,
    k: int = max(DEFAULT_KS),
    threshold: Threshold | None = None,
    running: Running = CPU,
    wiring: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Verification | dict[str, Any]:
    """As `run`, with one pass over a text in place of decoding; of --layers, what was done and what to type next.

    donor  compared side by side; what it has of a head is looked for at L0 too
    """
    if streaming.layers is None:
        given = donor if donor is not None and head_names(donor) else None
        out = _levels_0_and_1(ckpt, trunk, given, head, alone=False, quiet=quiet)
        out.threshold = threshold or Threshold()
        out.not_run = undecodable(ckpt)
        if out.not_run:
            return out
    found = run_stream(
        ckpt,
        streaming,
        running,
        head=head,
        other=donor,
        prompts=prompts,
        limit=limit,
        k=k,
        wiring=wiring,
        quiet=quiet,
    )
    if isinstance(found, dict):
        return found
    out.stream = found
    return out


def _levels_0_and_1(
    ckpt: Checkpoint,
    trunk: Checkpoint | None,
    donor: Checkpoint | None,
    head: Checkpoint | None,
    *,
    alone: bool,
    quiet: bool,
) -> Verification:
    """Lineage and static checks, see `run`."""
    if head is not None:
        _require_tokenizer(ckpt, head)
    judged = head if head is not None and alone else ckpt
    with progress(judged.nbytes, "lineage", quiet=quiet) as done:
        found, static = lineage(judged, trunk, donor, done), validate(judged)
        if head is not None and not alone:
            found += [replace(one, against=f"{one.against} of the head") for one in lineage(head, None, None, done)]
            static = static.joined(validate(head), "head: ")
    out = Verification(judged.path.name, found, static)
    out.runtimes = RUNTIMES.get(ckpt.family.name, ())
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
    running: Running,
    wiring: Mapping[str, Any] | None,
    sampling: Sampling | None,
    probe: bool,
    quiet: bool,
    verbose: bool,
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
    longest = max(map(len, ids)) + tokens
    from mtptools.decoder.run import SAMPLED, SAMPLED_PROMPTS, measure, verify_model
    from mtptools.decoder.sampling import GREEDY

    modes = ("fast", "serial") if serial else ("fast",)
    samplings, sampled_prompts = (GREEDY, SAMPLED), SAMPLED_PROMPTS
    if sampling is not None:
        samplings, sampled_prompts = (GREEDY, with_breakers(sampling, tokenizer)), len(ids)
    room: dict[str, Any] = {"texts": longest, "k": max(ks), "stream": True, "quiet": quiet, "verbose": verbose}
    with loaded(ckpt, head, running, wiring, **room) as (model, plan), status(quiet=quiet) as say:
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
        out.memory = plan.to_json()
    del model
    if donor is not None:
        # A sidecar has no trunk of its own: its head is measured on this one.
        trunk, sidecar = (ckpt, donor) if is_sidecar(donor) else (donor, None)
        room["quiet"] = True
        with loaded(trunk, sidecar, running, wiring, **room) as (other, _), status(quiet=quiet) as say:
            say(f"baseline: {donor.path.name}")
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
