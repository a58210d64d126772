"""What one pass over a model found, as lines to paste, and what of it fails a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING, Final

from mtptools.plan import human_bytes
from mtptools.report.levels import NOT_TRIED, maybe
from mtptools.threshold import DEAD, LEAST, Threshold

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.stream.rates import Rates
    from mtptools.decoder.stream.report import Compared, StreamReport, TrunkFacts

__all__ = ["stream_failures", "stream_lines"]

WORST_LAYERS: Final = 3


def stream_failures(report: StreamReport, threshold: Threshold) -> list[str]:
    """Why it does not pass, each with its level; empty when it does."""
    out: list[str] = []
    rates = report.rates
    if rates is None:
        asked = threshold.strict or threshold not in (Threshold(), Threshold(0.0))
        return ["L3 acceptance: no head: there is nothing to hold against --min-acceptance"] if asked else out
    first = rates.conditional[0]
    if first is None or rates.tried[0] < LEAST:
        return [f"L3 acceptance: {rates.tried[0]} first draft(s) were tried, {LEAST} are needed: read more text"]
    if first < threshold.absolute:
        out.append(f"L3 acceptance: {first:.1%} of first drafts, at least {threshold.absolute:.1%} is wanted")
    base = None if report.compared is None else report.compared.rates
    if base is not None and report.compared is not None:
        pairs = zip(rates.conditional, rates.error, base.conditional, base.error, strict=False)
        for number, (ours, error, theirs, base_error) in enumerate(pairs, 1):
            if ours is None or error is None or theirs is None or base_error is None:
                continue
            if threshold.short(ours, error, theirs, base_error):
                out.append(
                    f"L3 acceptance: draft {number}: {ours:.1%} where all before it were right, "
                    f"{report.compared.name} has {theirs:.1%}, at least {threshold.relative:.0%} of that is wanted"
                )
    helped = any(one.verdict == "helps" and one.cure in (report.diagnosis or "") for one in report.controls)
    if report.diagnosis and (out or helped):
        out.append(f"L4 controls: {report.diagnosis}" if helped else f"diagnosis: {report.diagnosis}")
    return out


def stream_lines(report: StreamReport) -> list[str]:
    """Markdown that can be pasted into a model card."""
    told = report.fingerprint
    lines = [
        f"stream         {report.positions} tokens in {report.passages} passage(s), one layer in memory at a time "
        f"({told['dtype']} on {told['device']})",
        f"trunk          {_trunk(report.trunk)}",
        *(f"warning        {one}" for one in report.warnings),
    ]
    if report.rates is not None:
        if report.own_text:
            lines += ["L3 acceptance  on text of the model's own: at each k, what the loop counts", ""]
        else:
            lines += ["L3 acceptance  expected, on text that the trunk would not always have written", ""]
        lines += [*_rates(report.rates, report.walked), "", *_NOTES[report.own_text], ""]
    if report.compared is not None:
        lines += _compared(report.compared)
    for control in report.controls:
        if control.must_hurt or control.verdict == "helps":
            lines.append(
                f"L4 control     {control.verdict:<8} {control.name}: {control.acceptance:.1%} (as it is "
                f"{control.base:.1%})"
            )
    if report.rates is not None and report.rates.tried[0] >= LEAST:
        if report.controls and report.controls[0].base < DEAD:
            lines.append("               the head is dead: nothing can hurt it, and what helps is a diagnosis")
        if report.diagnosis:
            lines.append(f"diagnosis      {report.diagnosis}")
    if report.went_on_after:
        lines.append(f"went on        after layer {report.went_on_after} of {report.n_layers}, from kept states")
    if report.seconds:
        speed, alone = report.nbytes / report.seconds / 1e6, ", this run alone" * bool(report.went_on_after)
        lines.append(f"read           {human_bytes(report.nbytes)} in {report.seconds:.1f} s, {speed:.0f} MB/s{alone}")
    return lines


def _trunk(facts: TrunkFacts) -> str:
    low, _, tenth, median = facts.margins
    perplexity = exp(min(facts.loss, 700))
    return (
        f"{facts.agreement:.1%} of {facts.counted} tokens are its first choice, perplexity {perplexity:.3f}; "
        f"margin of the best token: median {median:.2f}, 10 % below {tenth:.3f}, 0.1 % below {low:.4f}, "
        f"{facts.ties} exact tie(s)"
    )


_NOTES: Final = {
    True: ["Rate and mean length: the loop's own counts, step by step; the rest: every position of the text."],
    False: ["Of all steps, rate and mean length: products of the shares that are right, not counts."],
}


def _rates(rates: Rates, walked: Sequence[Acceptance] = ()) -> list[str]:
    """A Markdown table: one row per draft of a step; the loop's own counts where they are known."""
    head = ["draft", "tried", "right, if all before it were", "of all steps", "rate at k", "mean length at k"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for n, tried in enumerate(rates.tried):
        share, error, every = rates.conditional[n], rates.error[n], rates.per_position[n]
        rate, length = rates.rate(n + 1), rates.mean_length(n + 1)
        if n < len(walked) and tried:
            rate, length = walked[n].rate, walked[n].mean_length
        right = NOT_TRIED if share is None or error is None else f"{share:.1%} ± {error:.1%}"
        cells = [str(n + 1), str(tried), right, *(maybe(one, ".1%") for one in (every, rate)), maybe(length, ".2f")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _compared(other: Compared) -> list[str]:
    """Another checkpoint beside it."""
    lines = [f"against        {other.name}: {_trunk(other.trunk)}"]
    if other.shared == len(other.drift):
        lines.append("               the trunks are the same, layer by layer")
    else:
        worst = sorted(range(len(other.drift)), key=lambda n: other.drift[n] - (other.drift[n - 1] if n else 0.0))
        steps = ", ".join(f"layer {n}" for n in sorted(worst[-WORST_LAYERS:]))
        lines.append(
            f"               first choice differs at {other.flips} position(s), by margins of {other.flip_median:.3f} "
            f"(median) to {other.flip_most:.3f}; divergence {other.divergence:.2e} nats, at most {other.largest:.2e}"
        )
        lines.append(
            f"               states differ by {other.drift[-1]:.2%} after the last layer, most of it from {steps}"
        )
    if other.rates is not None:
        lines += ["", *_rates(other.rates), ""]
    return lines
