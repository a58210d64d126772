"""Levels L2 to L4 in one go: parity, acceptance, controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from mtptools.decoder.acceptance import Acceptance, simulate, total
from mtptools.decoder.controls import diagnose, run_controls
from mtptools.decoder.model import Model
from mtptools.decoder.parity import Parity, compare
from mtptools.decoder.report import DecoderReport, digest_prompts, fingerprint
from mtptools.decoder.sampling import GREEDY, Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.errors import UsageError

__all__ = ["DEFAULT_KS", "SAMPLED", "measure", "verify_model"]

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
    controls: bool = True,
    progress: Progress | None = None,
) -> DecoderReport:
    """Decode every prompt plainly and with every k; compare; count; try the controls.

    prompts    token ids, one list a prompt
    n_tokens   tokens emitted after each
    modes      "fast", "serial"
    samplings  the greedy one gives acceptance and controls too; others give parity, on the first prompts

    Raises MissingHeadError, and UsageError when there is nothing to decode. Nothing found is an error here: what
    fails a check is for the caller to say.
    """
    head = model.require_head()
    if not prompts or not ks or min(ks) < 1 or n_tokens < 2:
        raise UsageError("parity needs a prompt, a k of at least 1 and at least 2 tokens", hint="--k 1,2,3 --tokens 64")
    say = progress or (lambda _: None)
    plain_traces: list[Trace] = []
    counts: dict[int, list[DraftCounts]] = {k: [] for k in ks}
    parity: list[Parity] = []
    for number, ids in enumerate(prompts):
        for sampling in samplings:
            if sampling.temperature and number >= SAMPLED_PROMPTS:
                continue
            greedy = sampling.temperature == 0
            label = f"prompt {number + 1}, {'greedy' if greedy else 'sampled'}"
            say(f"{label}, plain")
            plain = decode_plain(model, ids, n_tokens, sampling=sampling, keep_states=greedy)
            if greedy:
                plain_traces.append(plain)
            for k in ks:
                for mode in modes:
                    arm = f"{label}, k={k}" + ("" if mode == "fast" else f", {mode}")
                    say(arm)
                    trace = decode_speculative(model, ids, n_tokens, k, mode=mode, sampling=sampling)
                    result = compare(plain, trace, arm)
                    if result.first_difference is not None:
                        result = _look_closer(model, ids, n_tokens, k, mode, sampling, result)
                    parity.append(result)
                    if greedy and mode == modes[0]:
                        counts[k].append(trace.drafts)
    report = DecoderReport(
        prompts=len(prompts),
        prompt_tokens=sum(len(ids) for ids in prompts),
        tokens=n_tokens,
        ks=tuple(ks),
        parity=parity,
        acceptance=[total(k, counts[k]) for k in ks],
        fingerprint=fingerprint(model),
        prompts_digest=digest_prompts(prompts),
    )
    emitted = [trace.tokens for trace in plain_traces]
    if emitted:
        report.distinct = sum(len(set(tokens)) for tokens in emitted) / sum(len(tokens) for tokens in emitted)
        seconds = sum(trace.decode_seconds for trace in plain_traces)
        report.plain_tokens_per_second = sum(len(tokens) - 1 for tokens in emitted) / seconds if seconds else 0.0
    if controls:
        say("controls")
        report.controls = run_controls(head, plain_traces)
        report.diagnosis = diagnose(report.controls)
    return report


def measure(model: Model, prompts: Sequence[Sequence[int]], ks: Sequence[int], n_tokens: int) -> list[Acceptance]:
    """Acceptance per k alone: one plain pass a prompt, then the head by itself."""
    head = model.require_head()
    traces = [decode_plain(model, ids, n_tokens, keep_states=True) for ids in prompts]
    return [total(k, [simulate(head, trace, k) for trace in traces]) for k in ks]


def _look_closer(
    model: Model, ids: Sequence[int], n: int, k: int, mode: str, sampling: Sampling, found: Parity
) -> Parity:
    """Decode once more, keeping the logits at the first difference."""
    keep = {found.first_difference or 0}
    plain = decode_plain(model, ids, n, sampling=sampling, keep_logits=keep)
    other = decode_speculative(model, ids, n, k, mode=mode, sampling=sampling, keep_logits=keep)
    again = compare(plain, other, found.arm)
    return found if again.first_difference != found.first_difference else again
