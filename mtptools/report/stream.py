"""What one pass over a model found, as lines to paste, and what of it fails a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import TYPE_CHECKING

from mtptools.threshold import DEAD, Threshold

if TYPE_CHECKING:
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.stream.rates import Rates
    from mtptools.decoder.stream.report import Compared, StreamReport, TrunkFacts

__all__ = ["stream_failures", "stream_lines"]

WORST_LAYERS = 3


def stream_failures(report: StreamReport, threshold: Threshold) -> list[str]:
    """Why it does not pass, each with its level; empty when it does."""
    out: list[str] = []
    rates = report.rates
    if rates is None:
        return out
    if not rates.tried[0]:
        return ["L3 acceptance: no position of the text has a draft: a longer --text"]
    if rates.conditional[0] < threshold.absolute:
        out.append(
            f"L3 acceptance: {rates.conditional[0]:.1%} of first drafts, at least {threshold.absolute:.1%} is wanted"
        )
    base = None if report.compared is None else report.compared.rates
    if base is not None and report.compared is not None:
        pairs = zip(rates.conditional, rates.error, base.conditional, base.error, strict=False)
        for number, (ours, error, theirs, base_error) in enumerate(pairs, 1):
            if not (rates.tried[number - 1] and base.tried[number - 1]):
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
    ]
    if report.rates is not None:
        if report.own_text:
            lines += ["L3 acceptance  on text of the model's own: at each k, what the loop counts", ""]
        else:
            lines += ["L3 acceptance  expected, on text that the trunk would not always have written", ""]
        lines += [*_rates(report.rates, report.walked), ""]
    if report.compared is not None:
        lines += _compared(report.compared)
    for control in report.controls:
        if control.must_hurt or control.verdict == "helps":
            lines.append(
                f"L4 control     {control.verdict:<8} {control.name}: {control.acceptance:.1%} (as it is "
                f"{control.base:.1%})"
            )
    if report.controls and report.controls[0].base < DEAD:
        lines.append("               the head is dead: nothing can hurt it, and what helps is a diagnosis")
    if report.diagnosis:
        lines.append(f"diagnosis      {report.diagnosis}")
    if report.seconds:
        speed = report.nbytes / report.seconds / 1e6
        lines.append(f"read           {report.nbytes / 1e9:.2f} GB in {report.seconds:.1f} s, {speed:.0f} MB/s")
    return lines


def _trunk(facts: TrunkFacts) -> str:
    low, _, tenth, median = facts.margins
    perplexity = exp(min(facts.loss, 700))
    return (
        f"{facts.agreement:.1%} of {facts.counted} tokens are its first choice, perplexity {perplexity:.3f}; "
        f"margin of the best token: median {median:.2f}, 10 % below {tenth:.3f}, 0.1 % below {low:.4f}, "
        f"{facts.ties} exact tie(s)"
    )


def _rates(rates: Rates, walked: Sequence[Acceptance] = ()) -> list[str]:
    """A Markdown table: one row per draft of a step; the loop's own counts where they are known."""
    head = ["draft", "tried", "right, if all before it were", "of all steps", "rate at k", "mean length at k"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for n, tried in enumerate(rates.tried):
        cells = [str(n + 1), str(tried), f"{rates.conditional[n]:.1%} ± {rates.error[n]:.1%}"]
        rate, length = rates.rate(n + 1), rates.mean_length(n + 1)
        if n < len(walked):
            rate, length = walked[n].rate, walked[n].mean_length
        cells += [f"{rates.per_position[n]:.1%}", f"{rate:.1%}", f"{length:.2f}"]
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
