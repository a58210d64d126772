"""`quantize --sweep`: measure types of the head before one is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.options import NO_OUTPUT, Writing
from mtptools.cli.output import emit, note, status
from mtptools.cli.sweep_options import Sweeping
from mtptools.cli.verifying import load, require_torch
from mtptools.decoder import undecodable
from mtptools.errors import CodecError, InputError, MissingExtraError, MtpToolsError, NoDecoderError, UsageError
from mtptools.head import is_sidecar
from mtptools.plan import Plan
from mtptools.preview import preview

if TYPE_CHECKING:
    from mtptools.decoder.choice import Sweep

__all__ = ["PlanOf", "run_sweep"]

PASSAGE: Final = 128  # tokens of a prompt that is cut out of a text
PASSAGES: Final = 8
# What a type that cannot be had raises; anything else is wrong with all of them.
UNAVAILABLE: Final = (CodecError, MissingExtraError)

Verify = Callable[[Path], tuple[bool, dict[str, Any], str]]
PlanOf = Callable[[str, bool], Plan]
"""(type, weighted by importance) to the plan that quantizes the head so."""


def run_sweep(
    ckpt: Checkpoint, plan_of: PlanOf, told: Sweeping, writing: Writing, *, weighted: bool, verify: Verify | None
) -> int:
    """Measure every type, say which one to publish, and with -o write that. The exit code.

    weighted  there is an importance matrix: types that take one are measured with it and without
    verify    of what is written, see `carry_out`

    Raises what reading, quantizing and decoding raise; of types that cannot be had, when none can.
    """
    from mtptools.cli.writing import carry_out
    from mtptools.ops.style import Style
    from mtptools.report.sweep import render, to_json

    writes, quiet = writing.out != NO_OUTPUT, writing.quiet or writing.as_json
    if told.plot is not None:
        from mtptools.report.plot import check_plot

        check_plot(told.plot)
    types = dict.fromkeys(Style.asked(kind, option="--sweep").matrices or kind for kind in told.types)
    plans, refused = _plans(plan_of, list(types), weighted)
    if writes:  # before the hours, not after them
        from mtptools.placing import check_output

        out = Path(os.path.abspath(writing.out))  # noqa: PTH100  a link is named, not what it leads to
        check_output(next(iter(plans.values())), out, force=writing.force)
    if weighted and not any(by for _, by in plans):
        note("the importance matrix weights none of these types of this head", quiet=quiet)
    sweep = _measured(ckpt, list(types), plans, refused, told, quiet=quiet)
    data = {"sweep": to_json(sweep)}
    chosen = sweep.choice.chosen
    plan = plans.get((chosen.name, chosen.weighted)) if writes else None
    emit(data, render(sweep), as_json=writing.as_json and plan is None, quiet=quiet)
    if told.plot is not None:
        from mtptools.report.sweep_plot import plot_sweep

        told.plot.write_bytes(plot_sweep(sweep, told.plot.suffix[1:].lower()))
        note(f"plot: {told.plot}", quiet=quiet)
    if plan is not None:
        return carry_out(plan, writing, verify, data)
    if writes:
        note("nothing is written: the head as it is is the one to publish")
    return 1 if writes else 0


def _plans(
    plan_of: PlanOf, types: Sequence[str], weighted: bool
) -> tuple[dict[tuple[str, bool], Plan], dict[str, MtpToolsError]]:
    """Plans by (type, weighted); and of types that cannot be had, why. Raises the first reason when none can."""
    plans: dict[tuple[str, bool], Plan] = {}
    refused: dict[str, MtpToolsError] = {}
    for kind in types:
        for by in (False, True) if weighted else (False,):
            try:
                plan = plan_of(kind, by)
            except UNAVAILABLE as error:
                refused[kind] = error
                continue
            except UsageError as error:
                where = "--sweep" if error.where == "--head" else error.where
                raise UsageError(error.what, where=where, hint=error.hint) from error
            if not by or any(entry.importance is not None for entry in plan.entries):
                plans[kind, by] = plan
    if not plans:
        raise next(iter(refused.values()))
    return plans, {kind: error for kind, error in refused.items() if (kind, True) not in plans}


def _measured(
    ckpt: Checkpoint,
    types: Sequence[str],
    plans: Mapping[tuple[str, bool], Plan],
    refused: Mapping[str, MtpToolsError],
    told: Sweeping,
    *,
    quiet: bool,
) -> Sweep:
    """Decode once, then every head. What can be wrong with little is found out before weights are loaded."""
    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="the head cannot be run: quantize it to Q8_0 or BF16")
    if is_sidecar(ckpt):
        raise InputError(
            "a sidecar has no trunk to draft for", where=ckpt.path, hint=f"mtptools graft TRUNK {ckpt.path} -o OUT"
        )
    require_torch()
    from mtptools.decoder.choice import AS_IT_IS, Row, Sweep, Tried
    from mtptools.decoder.load import with_head
    from mtptools.decoder.report import digest_prompts, fingerprint
    from mtptools.decoder.sweep import measure_head, plain_traces
    from mtptools.ops.roofline import traffic

    prompts = _prompts(ckpt, told)
    model = load(ckpt, None, told.device, told.dtype, told.threads)
    with status(quiet=quiet) as say:
        traces = plain_traces(model, prompts, told.tokens, say)
        emitted = [trace.tokens for trace in traces]
        distinct = sum(len(set(tokens)) for tokens in emitted) / sum(map(len, emitted))
        sweep = Sweep(ckpt.path.name, told.k, told.tokens, len(prompts), told.tolerance, distinct)
        sweep.fingerprint, sweep.prompts_digest = fingerprint(model), digest_prompts(prompts)
        say(AS_IT_IS)
        own = Tried(AS_IT_IS, False, traffic(ckpt), measure_head(model.require_head(), traces, told.k))
        sweep.rows.append(Row(own.label, own))
        failed: list[MtpToolsError] = []
        for kind in types:
            if kind in refused:
                sweep.rows.append(Row(kind, why=str(refused[kind])))
            for by in (by for by in (False, True) if (kind, by) in plans):
                say(f"{kind}, imatrix" if by else kind)
                planned = preview(plans[kind, by], ckpt)
                reads = traffic(planned)
                try:
                    head = with_head(model, planned).require_head()
                except UNAVAILABLE as error:  # found out by encoding
                    failed.append(error)
                    sweep.rows.append(Row(kind, why=str(error)))
                    continue
                one = Tried(kind, by, reads, measure_head(head, traces, told.k))
                sweep.rows.append(Row(one.label, one))
                # What is found out about checkpoints is cached by them: the last few stay, but not a head's bytes.
                planned.tensors.clear()
    if len(sweep.tried) == 1:
        raise failed[0]
    return sweep


def _prompts(ckpt: Checkpoint, told: Sweeping) -> list[list[int]]:
    """Token ids: passages of the texts, or prompts. Raises UsageError, InputError, TokenizerError."""
    from mtptools.cli.texts import read_text
    from mtptools.decoder.sweep import passages
    from mtptools.decoder.tokenizer import load_tokenizer
    from mtptools.prompts import read_prompts, spread

    if told.texts and told.prompts is not None:
        raise UsageError("prompts are a file's, or passages of a text", where="--text", hint="leave one of both out")
    texts = [read_text(path, "give a text file: prompts are cut out of it") for path in told.texts]
    chosen = [] if texts else spread(read_prompts(told.prompts), told.limit)
    tokenizer = load_tokenizer(ckpt, ckpt.hparams.vocab_size)
    if not texts:
        return [tokenizer.encode(one.text) for one in chosen]
    start = tokenizer.start
    ids = [tokenizer.encode(text)[len(start) :] for text in texts]
    return passages(ids, PASSAGE, told.limit or PASSAGES, start)
