"""One verification: what each level found, what fails it, as a table to paste and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from mtptools import __version__
from mtptools.ops.lineage import Lineage
from mtptools.ops.validate import Result
from mtptools.report.runtime import runtime_lines
from mtptools.report.stream import stream_failures, stream_lines
from mtptools.threshold import DEAD, Threshold, rate_error

if TYPE_CHECKING:  # torch is loaded only by --parity
    from mtptools.decoder.acceptance import Acceptance
    from mtptools.decoder.probe import Probed
    from mtptools.decoder.report import DecoderReport, SampledAcceptance
    from mtptools.decoder.stream.report import StreamReport
    from mtptools.families.runtimes import RuntimeWiring
    from mtptools.runtimes.report import RuntimeReport

__all__ = ["SCHEMA", "Verification"]

SCHEMA: Final = 1
# A probed wiring must have this much of the mean length of the one in use to be worth advice.
CLEARLY: Final = 1.1


@dataclass
class Verification:
    """Levels of one checkpoint. `decoder` is None when only L0 and L1 were asked for, or could be run.

    stream    one pass in place of decoding
    baseline  name of what the acceptance is measured against, None without one
    not_run   why levels that were asked for were not run, and which
    runtime   the artifact in a real runtime
    seconds   by the first level of what ran together: L0 (and L1), L2 (to L4), L5
    memory    what decoding was planned to take
    runtimes  how runtimes connect heads of the family, to name what a probe found
    """

    path: str
    lineage: list[Lineage]
    static: Result
    decoder: DecoderReport | None = None
    stream: StreamReport | None = None
    baseline: str | None = None
    baseline_acceptance: list[Acceptance] = field(default_factory=list)
    baseline_categories: dict[str, list[Acceptance]] = field(default_factory=dict)
    threshold: Threshold = field(default_factory=Threshold)
    not_run: str | None = None
    not_run_levels: str = "L2 to L4"
    runtimes: Sequence[RuntimeWiring] = ()
    memory: dict[str, Any] | None = None
    runtime: RuntimeReport | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def failures(self) -> list[str]:
        """Why it does not pass, each with its level; empty when it does."""
        out = [f"L0 lineage: {item.what}" for item in self.lineage if item.verdict == "fail"]
        out += [f"L1 static: [{f.check}] {f.what}" for f in self.static.findings if f.severity == "error"]
        if self.decoder is not None:
            out += self._parity() + self._acceptance() + self._controls()
        if self.stream is not None:
            out += stream_failures(self.stream, self.threshold)
        if self.runtime is not None:
            out += self.runtime.failures()
        return out

    def _parity(self) -> list[str]:
        assert self.decoder is not None
        first = self.decoder.first_difference()
        if first is None:
            return []
        tokens = "tokens agree, logits do not" if first.same_tokens else "other tokens"
        return [f"L2 parity: {first.arm} differs from token {first.first_difference} on ({tokens})"]

    def _acceptance(self) -> list[str]:
        assert self.decoder is not None
        out = []
        first = self.decoder.acceptance[0]
        if not sum(first.drafted):
            return ["L3 acceptance: nothing was drafted: decode more --tokens"]
        if first.per_position[0] < self.threshold.absolute:
            out.append(
                f"L3 acceptance: {first.per_position[0]:.1%} of first drafts (k={first.k}), at least "
                f"{self.threshold.absolute:.1%} is wanted"
            )
        before = {one.k: one for one in self.baseline_acceptance}
        for one in self.decoder.acceptance:
            base = before.get(one.k)
            if base is not None and self._short(one, base):
                out.append(
                    f"L3 acceptance: k={one.k}: {one.rate:.1%} of drafts, the baseline has {base.rate:.1%}, at least "
                    f"{self.threshold.relative:.0%} of that is wanted"
                )
        if out and self.decoder.diagnosis and not self._controls():
            out.append(f"diagnosis: {self.decoder.diagnosis}")
        return out

    def _controls(self) -> list[str]:
        """A fault that would help: whatever the acceptance is, the head is not read as it was made."""
        assert self.decoder is not None
        better = self.decoder.diagnosis
        helped = any(one.verdict == "helps" and one.cure in (better or "") for one in self.decoder.controls)
        return [f"L4 controls: {better}"] if better and helped else []

    def _short(self, one: Acceptance, base: Acceptance) -> bool:
        return self.threshold.short(
            one.rate, rate_error(one.rate, one.steps), base.rate, rate_error(base.rate, base.steps)
        )

    def to_json(self) -> dict[str, Any]:
        failures = self.failures()
        return {
            "schema": SCHEMA,
            "version": __version__,
            "path": self.path,
            "ok": not failures and self.not_run is None,
            "failures": failures,
            "not_run": None if self.not_run is None else f"{self.not_run_levels}: {self.not_run}",
            "lineage": [item.to_json() for item in self.lineage],
            "static": self.static.to_json(),
            "decoder": None if self.decoder is None else self.decoder.to_json(),
            "memory": self.memory if self.stream is None else self.stream.memory,
            "seconds": {level: round(took, 3) for level, took in self.seconds.items()},
            "stream": None if self.stream is None else self.stream.to_json(),
            "runtime": None if self.runtime is None else self.runtime.to_json(),
            "baseline": {
                "name": self.baseline,
                "acceptance": [a.to_json() for a in self.baseline_acceptance],
                "categories": {
                    name: {"acceptance": [a.to_json() for a in found]}
                    for name, found in self.baseline_categories.items()
                },
            }
            if self.baseline
            else None,
            "threshold": {"absolute": self.threshold.absolute, "relative": self.threshold.relative},
        }

    def render(self) -> str:
        """Markdown that can be pasted into a model card."""
        lines = [f"verify {self.path}", ""]
        for item in self.lineage:
            lines.append(f"L0 lineage     {item.verdict}: {item.against}: {item.what}")
        errors = sum(1 for f in self.static.findings if f.severity == "error")
        lines.append(
            f"L1 static      {'pass' if self.static.ok else 'fail'}: {len(self.static.passed)} checks without a "
            f"finding, {errors} error(s), {len(self.static.findings) - errors} warning(s)"
        )
        lines += [f"               {f.severity}: [{f.check}] {f.what}" for f in self.static.findings]
        if self.decoder is not None:
            lines += self._decoder_lines()
        if self.stream is not None:
            lines += stream_lines(self.stream)
        if self.runtime is not None:
            lines += ["", *runtime_lines(self.runtime)]
        failures = self.failures()
        levels = "L0, L1 (no --parity: nothing was decoded)" if self.decoder is None else "L0 to L4"
        if self.stream is not None:
            levels = "L0, L1, L3 and L4 from one pass (--stream does not compare decoding modes: L2 was not run)"
            if self.stream.rates is None:
                levels = "L0, L1; no head: L3 and L4 were not run"
        open_ones = [item.against for item in self.lineage if item.verdict == "not checked"]
        tail = f"; lineage not checked: {', '.join(open_ones)}" if open_ones else ""
        for report, more in ((self.decoder, "decode more --tokens"), (self.stream, "read more --positions")):
            if report is not None and report.powerless:
                tail += f"; L4 has no power to see {', '.join(report.powerless)}: {more}"
        if self.not_run is not None:
            levels = f"L0, L1; {self.not_run_levels} were not run: {self.not_run}"
        if self.runtime is not None:
            levels = "L0 to L5" if self.decoder is not None else f"L5; {levels}"
        verdict = "FAIL" if failures else "PASS" if self.not_run is None else "NOT CHECKED"
        lines += ["", f"{verdict}  {levels}{tail}", *(f"  {line}" for line in failures)]
        return "\n".join(lines)

    def _decoder_lines(self) -> list[str]:
        report = self.decoder
        assert report is not None
        rows = sum(arm.compared for arm in report.parity)
        print_ = report.fingerprint
        lines = [
            f"L2 parity      {'pass' if report.parity_ok else 'fail'}: {len(report.parity)} arms, {rows} logits rows "
            f"compared bit for bit ({print_['dtype']} on {print_['device']})",
            *([f"L2 graphs      {print_['graphs']}"] if "graphs" in print_ else []),
            f"L3 acceptance  {report.prompts} prompts, {report.tokens} tokens each, {report.distinct:.0%} distinct",
            "",
            *acceptance_table(report, self.baseline_acceptance),
            "",
        ]
        if report.probed:
            lines += [f"L3 probe       k={report.probed[0].acceptance.k}, best first; * is the wiring in use", ""]
            lines += [*probe_table(report.probed, self.runtimes), "", *advice(report.probed), ""]
        for one in report.sampled:
            lines += [f"L3 sampled     {one.prompts} prompts: {one.sampling}", "", *sampled_table(one), ""]
        for control in report.controls:
            if not control.must_hurt and control.verdict != "helps":
                continue
            lines.append(
                f"L4 control     {control.verdict:<8} {control.name}: {control.acceptance:.1%} (as it is "
                f"{control.base:.1%})"
            )
        dead = bool(report.controls) and report.controls[0].base < DEAD
        if dead:
            lines.append("               the head is dead: nothing can hurt it, and what helps is a diagnosis")
        elif report.powerless:
            lines.append(f"               these prompts cannot see: {', '.join(report.powerless)}")
        if report.diagnosis:
            lines.append(f"diagnosis      {report.diagnosis}")
        return lines


def acceptance_table(report: DecoderReport, baseline: list[Acceptance]) -> list[str]:
    """A Markdown table: one row per k, one column per draft position."""
    deepest = max(report.ks)
    base = {one.k: one for one in baseline}
    head = ["k", "prompts", "tokens", "parity", *(f"pos {n + 1}" for n in range(deepest)), "rate", "mean length"]
    head += ["baseline rate"] if base else []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in report.acceptance:
        arms = [arm for arm in report.parity if f"k={one.k}" in arm.arm.replace(",", " ").split()]
        cells = [str(one.k), str(report.prompts), str(report.prompts * report.tokens)]
        cells.append("exact" if all(arm.equal for arm in arms) else "DIFFERS")
        cells += [f"{one.per_position[n]:.1%}" if n < one.k else "" for n in range(deepest)]
        cells += [f"{one.rate:.1%}", f"{one.mean_length:.2f}"]
        if base:
            cells.append(f"{base[one.k].rate:.1%}" if one.k in base else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def probe_table(probed: Sequence[Probed], runtimes: Sequence[RuntimeWiring]) -> list[str]:
    """A Markdown table: one row per wiring, and which runtimes connect the head so."""
    head = ["tap", "recycle", "position 0", "recurrence", "rate", "mean length", "as in"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for one in probed:
        wiring = one.wiring
        named = [
            known.runtime
            for known in runtimes
            if (known.tap, known.recycle, known.mask_first) == (wiring.tap, wiring.recycle, wiring.mask_first)
            and known.recurrence in (wiring.recurrence, *(() if one.deep else ("exact", "cycle")))
        ]
        cells = [wiring.tap + (" *" if one.stated else ""), wiring.recycle, "zeroed" if wiring.mask_first else "kept"]
        cells += [
            wiring.recurrence,
            f"{one.acceptance.rate:.1%}",
            f"{one.acceptance.mean_length:.2f}",
            ", ".join(named),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def advice(probed: Sequence[Probed]) -> list[str]:
    """What to type when another wiring is clearly better than the one in use."""
    best, used = probed[0], next(one for one in probed if one.stated)
    if best.acceptance.mean_length < used.acceptance.mean_length * CLEARLY:
        return ["the wiring in use is the best, or as good as: keep it"]
    changes = [
        f"--{name.replace('_', '-')} {getattr(best.wiring, name)}"
        for name in ("tap", "recycle", "recurrence")
        if getattr(best.wiring, name) != getattr(used.wiring, name)
    ]
    if best.wiring.mask_first != used.wiring.mask_first:
        changes.append("--mask-first" if best.wiring.mask_first else "--no-mask-first")
    return [f"better than the wiring in use: {' '.join(changes)}"]


def sampled_table(found: SampledAcceptance) -> list[str]:
    """A Markdown table: one row per way to choose drafts, one column per k."""
    ks = [one.k for one in next(iter(found.drafts.values()))]
    head = ["draft", *(f"rate, k={k}" for k in ks), f"mean length, k={ks[-1]}"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for choice, per_k in found.drafts.items():
        cells = [choice, *(f"{one.rate:.1%}" for one in per_k), f"{per_k[-1].mean_length:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
