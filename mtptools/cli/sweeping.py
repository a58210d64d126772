"""`quantize --sweep`: measure types of the head before one is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.checkpoint import Checkpoint
from mtptools.cli.loading import loaded, require_room, require_torch
from mtptools.cli.options import NO_OUTPUT, Writing
from mtptools.cli.output import emit, note, status
from mtptools.cli.plots import check_plot_place
from mtptools.cli.sweep_options import Sweeping
from mtptools.decoder import undecodable
from mtptools.errors import CodecError, InputError, MtpToolsError, NoDecoderError, SystemFailure, UsageError
from mtptools.head import is_sidecar
from mtptools.plan import Plan

if TYPE_CHECKING:
    from mtptools.report.choice import Sweep
    from mtptools.report.trial import Wanted

__all__ = ["PlanOf", "run_sweep"]

PASSAGE: Final = 128  # tokens of a prompt that is cut out of a text
PASSAGES: Final = 8
# What a type that cannot be had raises; anything else is wrong with all of them.
UNAVAILABLE: Final = (CodecError, SystemFailure)

Verify = Callable[[Path], tuple[bool, dict[str, Any], str]]
PlanOf = Callable[[str, bool], Plan]
"""(type, weighted by importance) to the plan that quantizes the head so."""


def run_sweep(
    ckpt: Checkpoint, plan_of: PlanOf, told: Sweeping, writing: Writing, *, weighted: bool, verify: Verify | None
) -> int:
    """Measure every type, say which one to publish, and with -o write that. The exit code: 1 for nothing written.

    weighted  there is an importance matrix: types that take one are measured with it and without
    verify    of what is written, see `carry_out`

    Raises what reading, quantizing and decoding raise; of types that cannot be had, when none can.
    """
    from mtptools.cli.writing import carry_out, check_plan
    from mtptools.ops.style import Style

    writes, quiet = writing.out != NO_OUTPUT, writing.quiet or writing.as_json
    if told.plot is not None:
        check_plot_place(told.plot)
    types = dict.fromkeys(Style.asked(kind, option="--sweep").matrices or kind for kind in told.types)
    wanted = _wanted(plan_of, list(types), weighted)
    plans = {key: plan for key, plan in wanted.items() if isinstance(plan, Plan)}
    if not plans:
        raise next(error for error in wanted.values() if isinstance(error, MtpToolsError))
    if writes:
        check_plan(next(iter(plans.values())), writing)
    if weighted and not any(by for _, by in plans):
        note("the importance matrix weights none of these types of this head", quiet=quiet)
    sweep = _measured(ckpt, wanted, told, quiet=quiet)
    from mtptools.report.sweep import render, to_json

    data: dict[str, Any] = {"sweep": to_json(sweep)}
    chosen = sweep.choice.chosen
    plan = plans.get((chosen.name, chosen.weighted)) if writes else None
    if plan is None:
        emit(data | ({"output": None} if writes else {}), render(sweep), as_json=writing.as_json, quiet=quiet)
        code = 1 if writes else 0
    else:
        emit(data, render(sweep), as_json=False, quiet=quiet)
        try:
            code = carry_out(plan, writing, verify, data)
        except MtpToolsError:
            if writing.as_json:  # what took hours is not lost
                note(render(sweep))
            raise
    if told.plot is not None:
        from mtptools.report.plot import write_plot
        from mtptools.report.sweep_plot import plot_sweep

        write_plot(told.plot, plot_sweep(sweep, told.plot.suffix[1:].lower()))
        note(f"plot: {told.plot}", quiet=quiet)
    if writes and plan is None:
        note("nothing is written: the head as it is is the one to publish")
    return code


def _wanted(plan_of: PlanOf, types: Sequence[str], weighted: bool) -> Wanted:
    """Plans, and of types that cannot be had, why. Raises UsageError for what is no type of this container."""
    out: dict[tuple[str, bool], Plan | MtpToolsError] = {}
    for kind in types:
        for by in (False, True) if weighted else (False,):
            try:
                plan = plan_of(kind, by)
            except UNAVAILABLE as error:
                out[kind, by] = error
            except UsageError as error:
                if error.where != "--role":
                    where = "--sweep" if error.where == "--head" else error.where
                    raise UsageError(error.what, where=where, hint=error.hint) from error
                out[kind, by] = error  # it may go with the other types
            else:
                if not by or any(entry.importance is not None for entry in plan.entries):
                    out[kind, by] = plan
        if (kind, True) in out and not isinstance(out[kind, False], Plan):
            del out[kind, False]  # that it takes importance goes without saying
    return out


def _measured(ckpt: Checkpoint, wanted: Wanted, told: Sweeping, *, quiet: bool) -> Sweep:
    """Load, and try the heads. What can be wrong with little is found out before weights are loaded."""
    reason = undecodable(ckpt)
    if reason:
        raise NoDecoderError(reason, where=ckpt.path, hint="the head cannot be run: quantize it to Q8_0 or BF16")
    if is_sidecar(ckpt):
        raise InputError(
            "a sidecar has no trunk to draft for", where=ckpt.path, hint=f"mtptools graft TRUNK {ckpt.path} -o OUT"
        )
    told.check(ckpt.hparams.context_length)
    require_torch()
    from mtptools.report.trial import try_heads

    prompts = _prompts(ckpt, told)
    longest = require_room(ckpt, prompts, told.tokens)
    with loaded(ckpt, None, told, texts=longest, k=told.k, quiet=quiet) as (model, _), status(quiet=quiet) as say:
        return try_heads(
            ckpt, model, prompts, wanted, k=told.k, n_tokens=told.tokens, tolerance=told.tolerance, progress=say
        )


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
