"""Levels L2 to L4 in one go: parity, acceptance, controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from mtptools.decoder.acceptance import Acceptance, simulate, total
from mtptools.decoder.by_prompt import PromptCounts, by_category
from mtptools.decoder.controls import diagnose, run_controls
from mtptools.decoder.margins import Margins
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.parity import Parity, compare
from mtptools.decoder.probe import probe
from mtptools.decoder.report import DecoderReport, SampledAcceptance, digest_prompts, fingerprint
from mtptools.decoder.sampling import DRAFT_CHOICES, GREEDY, Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.errors import UsageError

__all__ = [
    "DEFAULT_KS",
    "SAMPLED",
    "SAMPLED_PROMPTS",
    "compare_drafts",
    "measure",
    "measure_each",
    "verify_model",
]

DEFAULT_KS: Final = (1, 2, 3)
SAMPLED: Final = Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=1)
"""The sampled arm: filters on, so that they are compared too."""

SAMPLED_PROMPTS: Final = 2
"""Prompts that are also decoded with sampling: it takes the same path through the model, with other drafts."""

Progress = Callable[[str], None]


def verify_model(
    model: Model,
    prompts: Sequence[Sequence[int]],
    ks: Sequence[int] = DEFAULT_KS,
    n_tokens: int = 64,
    *,
    modes: Sequence[str] = ("fast",),
    samplings: Sequence[Sampling] = (GREEDY, SAMPLED),
    sampled_prompts: int = SAMPLED_PROMPTS,
    controls: bool = True,
    probing: bool = False,
    categories: Sequence[str] = (),
    decode: Callable[[Sequence[int]], str] | None = None,
    progress: Progress | None = None,
) -> DecoderReport:
    """Decode every prompt plainly and with every k; compare; count; try the controls.

    prompts    token ids, one list a prompt
    n_tokens   tokens emitted after each
    modes      "fast", "serial"
    samplings  the greedy one gives acceptance and controls too; others, on the first `sampled_prompts`, give parity and
               the acceptance of every way to choose drafts

    probing    measure the head in every wiring that runtimes disagree on
    categories one a prompt, for acceptance by category;  decode  ids to text, to show the tokens around a difference

    Raises MissingHeadError, and UsageError when there is nothing to decode. Nothing found is an error here: what
    fails a check is for the caller to say.
    """
    head = model.require_head()
    if not prompts or not ks or min(ks) < 1 or n_tokens < 2:
        raise UsageError("parity needs a prompt, a k of at least 1 and at least 2 tokens", hint="--k 1,2,3 --tokens 64")
    say = progress or (lambda _: None)
    plain_traces: list[Trace] = []
    sampled_traces: dict[Sampling, list[Trace]] = {}
    counts: dict[int, list[DraftCounts]] = {k: [] for k in ks}
    parity: list[Parity] = []
    named = list(categories) or [""] * len(prompts)
    per_prompt = [PromptCounts(len(ids), category) for ids, category in zip(prompts, named, strict=True)]
    for number, ids in enumerate(prompts):
        for sampling in samplings:
            greedy = sampling.is_plain
            if not greedy and number >= sampled_prompts:
                continue
            label = f"prompt {number + 1}, {'greedy' if greedy else 'sampled'}"
            say(f"{label}, plain")
            plain = decode_plain(model, ids, n_tokens, sampling=sampling, keep_states=True)
            (plain_traces if greedy else sampled_traces.setdefault(sampling, [])).append(plain)
            if greedy:
                per_prompt[number].add(0, plain)
            for k in ks:
                for mode in modes:
                    arm = f"{label}, k={k}" + ("" if mode == "fast" else f", {mode}")
                    say(arm)
                    trace = decode_speculative(model, ids, n_tokens, k, mode=mode, sampling=sampling)
                    result = compare(plain, trace, arm)
                    if result.first_difference is not None:
                        result = _look_closer(model, ids, n_tokens, k, mode, sampling, result)
                        if decode is not None and result.context is not None:
                            result = replace(result, context=result.context.read(decode))
                    parity.append(replace(result, prompt=number + 1))
                    if greedy and mode == modes[0]:
                        counts[k].append(trace.drafts)
                        per_prompt[number].add(k, trace)
    report = DecoderReport(
        prompts=len(prompts),
        prompt_tokens=sum(len(ids) for ids in prompts),
        tokens=n_tokens,
        ks=tuple(ks),
        parity=parity,
        acceptance=[total(k, counts[k]) for k in ks],
        fingerprint=fingerprint(model),
        prompts_digest=digest_prompts(prompts),
        per_prompt=per_prompt,
        categories=by_category(named, counts),
        margins=Margins.of(plain_traces),
    )
    if sampled_traces:
        say("acceptance when sampling")
    report.sampled = [_by_choice(head, traces, ks, sampling) for sampling, traces in sampled_traces.items()]
    emitted = [trace.tokens for trace in plain_traces]
    if emitted:
        report.distinct = sum(len(set(tokens)) for tokens in emitted) / sum(len(tokens) for tokens in emitted)
        seconds = sum(trace.decode_seconds for trace in plain_traces)
        report.plain_tokens_per_second = sum(len(tokens) - 1 for tokens in emitted) / seconds if seconds else 0.0
    if probing:
        report.probed = probe(head, plain_traces, max(2, *ks), streams=model.trunk.streams, progress=say)
    if controls:
        say("controls")
        report.controls = run_controls(head, plain_traces)
        report.diagnosis = diagnose(report.controls)
    return report


def measure(model: Model, prompts: Sequence[Sequence[int]], ks: Sequence[int], n_tokens: int) -> list[Acceptance]:
    """Acceptance per k alone: one plain pass a prompt, then the head by itself."""
    return measure_each(model, prompts, [""] * len(prompts), ks, n_tokens)[0]


def measure_each(
    model: Model, prompts: Sequence[Sequence[int]], categories: Sequence[str], ks: Sequence[int], n_tokens: int
) -> tuple[list[Acceptance], dict[str, list[Acceptance]]]:
    """As `measure`, and the same of each category of prompts; of none when all are of one."""
    head = model.require_head()
    traces = [decode_plain(model, ids, n_tokens, keep_states=True) for ids in prompts]
    counts = {k: [simulate(head, trace, k) for trace in traces] for k in ks}
    return [total(k, counts[k]) for k in ks], by_category(categories, counts)


def compare_drafts(
    model: Model, prompts: Sequence[Sequence[int]], sampling: Sampling, ks: Sequence[int], n_tokens: int
) -> SampledAcceptance:
    """Acceptance of every way to choose drafts (`Sampling.for_drafts`) where the target samples so.

    By the match rule: the text is that of plain decoding whatever is drafted, so one plain pass a prompt is enough.
    """
    head = model.require_head()
    traces = [decode_plain(model, ids, n_tokens, sampling=sampling, keep_states=True) for ids in prompts]
    return _by_choice(head, traces, ks, sampling)


def _by_choice(head: Head, traces: Sequence[Trace], ks: Sequence[int], sampling: Sampling) -> SampledAcceptance:
    def one(choice: str, k: int) -> Acceptance:
        drafts = sampling.for_drafts(choice)
        return total(k, [simulate(head, trace, k, sampling=drafts) for trace in traces])

    drafts = {choice: [one(choice, k) for k in ks] for choice in DRAFT_CHOICES}
    return SampledAcceptance(sampling, len(traces), drafts)


def _look_closer(
    model: Model, ids: Sequence[int], n: int, k: int, mode: str, sampling: Sampling, found: Parity
) -> Parity:
    """Decode once more, keeping the logits at the first difference."""
    keep = {found.first_difference or 0}
    plain = decode_plain(model, ids, n, sampling=sampling, keep_logits=keep)
    other = decode_speculative(model, ids, n, k, mode=mode, sampling=sampling, keep_logits=keep)
    again = compare(plain, other, found.arm)
    return found if again.first_difference != found.first_difference else again
