"""Running the levels of verify, for the verb itself and for --verify of the writing verbs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.baseline import read_baseline
from mtptools.cli.fetching import fetched
from mtptools.cli.loading import loaded, require_head, require_room, require_torch
from mtptools.cli.options import Running
from mtptools.cli.output import progress, status
from mtptools.cli.runtime_options import Asked
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
from mtptools.prompts import read_prompts
from mtptools.receipt import load_beside
from mtptools.report.verification import Verification
from mtptools.tensors import Blob
from mtptools.threshold import Threshold
from mtptools.tokens import tokenizer_facts

if TYPE_CHECKING:
    from mtptools.decoder.sampling import Sampling
    from mtptools.decoder.tokenizer import Tokenizer

__all__ = [
    "parse_ks",
    "run",
    "run_one_pass",
    "with_breakers",
]

CPU: Final = Running("cpu", "float32", None, offload=False, context=None, graphs=False)
DEFAULT_TOKENS: Final = 64
MOST: Final = 64
DEFAULT_KS: Final = (1, 2, 3)


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
    runtime: Asked | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> Verification:
    """L0 and L1, and with `parity` L2 to L4, if the decoder knows the family: `not_run` says so if not.

    With `runtime` L5: of every family, and with our decoder's texts beside where that knows it.

    alone     L0 and L1 are of `head` only: it is what was written, and the trunk is as it was
    sampling  of the sampled arm on all prompts; None: a default, on few
    wiring    what to change of the family's own;  probe  measure every other variant too
    """
    out = _levels_0_and_1(ckpt, trunk, donor, head, alone=alone, quiet=quiet)
    out.threshold = threshold or Threshold()
    if parity:
        out.not_run = undecodable(ckpt)
    if not parity or out.not_run:
        if runtime is not None:
            from mtptools.cli.running_runtime import run_runtime

            start = perf_counter()
            told: dict[str, Any] = {"prompts": prompts, "limit": limit, "tokens": tokens, "k": max(ks)}
            told |= {"running": running, "wiring": wiring, "quiet": quiet, "verbose": verbose}
            try:
                out.runtime = run_runtime(ckpt, head, runtime, **told)
                out.runtime.threshold = out.threshold
            except InputError as error:
                if out.static.ok:
                    raise
                out.not_run, out.not_run_levels = str(error), "L2 to L5"  # what L1 found goes before: it says more
            out.seconds["L5"] = perf_counter() - start
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
            runtime=runtime,
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
    if donor is not None and head_names(head or ckpt):
        require_head(donor)
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
    start = perf_counter()
    if head is not None:
        _require_tokenizer(ckpt, head)
    judged = head if head is not None and alone else ckpt
    for one in (judged, *([head] if head is not None and not alone else [])):
        fetched(_compared(one, trunk, donor), quiet=quiet)
    with progress(judged.nbytes, "lineage", quiet=quiet) as done:
        beside = head is not None and not alone  # the head that is used is not in `judged`
        found, static = lineage(judged, trunk, None if beside else donor, done), validate(judged)
        if head is not None and not alone:
            found += [replace(one, against=f"{one.against} of the head") for one in lineage(head, None, donor, done)]
            static = static.joined(validate(head), "head: ")
    out = Verification(judged.path.name, found, static)
    out.seconds["L0"] = perf_counter() - start
    out.runtimes = RUNTIMES.get(ckpt.family.name, ())
    return out


def _compared(ckpt: Checkpoint, trunk: Checkpoint | None, donor: Checkpoint | None) -> Iterator[Blob]:
    """What comparing bytes reads: everything where there is a receipt or a trunk, heads where there is a donor."""
    read: list[tuple[Checkpoint, Iterable[str]]] = []
    if trunk is not None or load_beside(ckpt) is not None:
        read.append((ckpt, ckpt))
    elif donor is not None:
        read.append((ckpt, head_names(ckpt)))
    if trunk is not None:
        read.append((trunk, trunk))
    if donor is not None:
        read.append((donor, head_names(donor)))
    return (blob for one, names in read for name in names for blob in one[name].blobs)


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
    runtime: Asked | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """L2 to L4, and L5 with a runtime, into `out`."""
    chosen = read_prompts(prompts)[:limit]
    if sampling is not None and sampling.is_plain:
        raise UsageError("at temperature 0 these sampling options change nothing", hint="--temperature 0.8 --seed 1")
    running.check(ckpt.hparams.context_length)
    for holder in (head or ckpt, *([donor] if donor is not None else [])):
        require_head(holder)
    require_torch()
    from mtptools.decoder.tokenizer import load_tokenizer

    # What can be wrong with little is found out before weights are loaded.
    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    ids, categories = [tokenizer.encode(one.text) for one in chosen], [one.category for one in chosen]
    longest = require_room(ckpt, ids, tokens)
    before = read_baseline(baseline, ks, tokens, ids) if baseline is not None else None
    answers = None
    if runtime is not None:  # gone before weights are loaded here
        from mtptools.cli.running_runtime import ask_runtime, judge_runtime

        start = perf_counter()
        where: dict[str, Any] = {"threads": running.threads, "gpu": running.on_gpu}
        with status(quiet=quiet) as say:
            answers = ask_runtime(ckpt, head, runtime, tokenizer, ids, tokens, max(ks), **where, say=say)
        out.seconds["L5"] = perf_counter() - start
    from mtptools.decoder.run import SAMPLED, SAMPLED_PROMPTS, measure_each, verify_model
    from mtptools.decoder.sampling import GREEDY

    modes = ("fast", "serial") if serial else ("fast",)
    samplings, sampled_prompts = (GREEDY, SAMPLED), SAMPLED_PROMPTS
    if sampling is not None:
        samplings, sampled_prompts = (GREEDY, with_breakers(sampling, tokenizer)), len(ids)
    room: dict[str, Any] = {"texts": longest, "k": max(ks), "stream": True, "quiet": quiet, "verbose": verbose}
    with loaded(ckpt, head, running, wiring, **room) as (model, plan), status(quiet=quiet) as say:
        start = perf_counter()
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
            categories=categories,
            decode=tokenizer.decode,
            progress=say,
        )
        out.memory, out.seconds["L2"] = plan.to_json(), perf_counter() - start
        if runtime is not None and answers is not None:
            out.runtime = judge_runtime(answers, None if runtime.runtime_alone else model, tokenizer, chosen, say=say)
            out.runtime.threshold = out.threshold
    del model
    if donor is not None:
        # A sidecar has no trunk of its own: its head is measured on this one.
        trunk, sidecar = (ckpt, donor) if is_sidecar(donor) else (donor, None)
        room["quiet"] = True
        with loaded(trunk, sidecar, running, wiring, **room) as (other, _), status(quiet=quiet) as say:
            say(f"baseline: {donor.path.name}")
            out.baseline_acceptance, out.baseline_categories = measure_each(other, ids, categories, ks, tokens)
        out.baseline = donor.path.name
    if before is not None and baseline is not None:
        out.baseline, (out.baseline_acceptance, out.baseline_categories) = baseline.name, before
