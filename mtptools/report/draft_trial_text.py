"""A trial of a draft vocabulary as tables to paste, as sentences, and as JSON."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from mtptools import __version__
from mtptools.ops.roofline import LEFT_OUT
from mtptools.report.bench import conditions, markdown

if TYPE_CHECKING:  # torch is loaded by the decoder alone
    from mtptools.decoder.sweep import Measured
    from mtptools.report.draft_trial import DomainTrial, DraftTrial

__all__ = ["render", "to_json"]

SCHEMA: Final = 1


def to_json(trial: DraftTrial, max_loss: float | None = None) -> dict[str, Any]:
    """max_loss  points that a domain may lose; None: any"""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "path": trial.path,
        "draft_vocabulary": {
            "size": len(trial.vocabulary),
            "of": trial.vocabulary.size,
            "share": trial.vocabulary.share,
        },
        "k": trial.k,
        "tokens": trial.n_tokens,
        "prompts": len(trial.whole.before.counts),
        "prompts_digest": trial.prompts_digest,
        "distinct": trial.distinct,
        "max_loss": max_loss,
        "failed": [] if max_loss is None else trial.failed(max_loss),
        "unclear": [] if max_loss is None else [one.name for one in trial.domains if one.unclear(max_loss)],
        "domains": {one.name: _domain_json(trial, one) for one in trial.domains},
        "all": _domain_json(trial, trial.whole),
        "model": {"gain": f"bytes read, one request; left out: {LEFT_OUT}"},
        "speed": None if trial.speed is None else trial.speed.to_json(),
        "fingerprint": trial.fingerprint,
    }


def _domain_json(trial: DraftTrial, one: DomainTrial) -> dict[str, Any]:
    position, points = one.worst
    return {
        "prompts": len(one.before.counts),
        "before": one.before.acceptance.to_json(),
        "after": one.after.acceptance.to_json(),
        "loss": one.loss,
        "loss_error": one.error if isfinite(one.error) else None,
        "position_losses": one.position_losses,
        "worst_position": {"position": position, "loss": points},
        "tokens": one.tokens,
        "outside": one.outside,
        "outside_share": one.outside_share,
        "modelled_gain": trial.gain(one),
    }


def render(trial: DraftTrial, max_loss: float | None = None) -> str:
    """Markdown: what was decoded, acceptance before and after, speed, and which domains lose too much."""
    kept, k = trial.vocabulary, trial.k
    prompts = len(trial.whole.before.counts)
    lines = [
        f"{len(kept):,} of {kept.size:,} tokens can be drafted ({kept.share:.0%}), tried on {trial.path}",
        "",
        f"{prompts} prompt{'s' * (prompts != 1)}, up to {trial.n_tokens} tokens each, {trial.distinct:.0%} distinct, "
        f"greedy, k={k};",
        conditions(trial.fingerprint),
        "",
        *markdown(_domains(trial)),
        "",
        "before and after the head is reduced; rate: accepted drafts by all drafts; loss: in points,",
        "± one standard error; worst: the position that loses most; outside: of the text's tokens, those that",
        "it cannot draft",
        "",
        *markdown(_positions(trial)),
        "",
    ]
    if trial.reads is not None:
        lines += ["model: of the gain in tokens a second, by bytes that one request reads; left out:", LEFT_OUT, ""]
    lines += _speed(trial)
    if not all(isfinite(one.error) for one in trial.domains):
        lines.append("± ?: of so few steps no error is known: more --tokens, or more prompts")
    dead = [one.name for one in trial.domains if not sum(one.before.acceptance.accepted)]
    if dead:
        lines.append(f"nothing was accepted before either: {', '.join(dead)}: mtptools verify says why")
    return "\n".join([*lines, *_verdict(trial, max_loss)]).rstrip()


def _rows(trial: DraftTrial) -> list[DomainTrial]:
    return [*trial.domains, *([trial.whole] if len(trial.domains) > 1 else [])]


def _domains(trial: DraftTrial) -> list[list[str]]:
    rows = [["domain", "prompts", "rate", "after", "loss", "worst", "length", "after", "outside"]]
    rows[0] += ["model"] if trial.reads is not None else []
    for one in _rows(trial):
        (position, points), gain = one.worst, trial.gain(one)
        error = f"{one.error:.1f}" if isfinite(one.error) else "?"
        before, after = one.before.acceptance, one.after.acceptance
        rows.append([one.name, str(len(one.before.counts)), f"{before.rate:.1%}", f"{after.rate:.1%}"])
        rows[-1] += [f"{one.loss:.1f} ± {error}", f"{points:.1f} at {position}"]
        rows[-1] += [f"{before.mean_length:.2f}", f"{after.mean_length:.2f}", f"{one.outside_share:.2%}"]
        rows[-1] += [f"{gain:.2f}"] if gain is not None else []
    return rows


def _positions(trial: DraftTrial) -> list[list[str]]:
    rows = [["accepted", "head", *(f"pos {n + 1}" for n in range(trial.k))]]

    def row(name: str, head: str, measured: Measured) -> list[str]:
        return [name, head, *(f"{share:.1%}" for share in measured.acceptance.per_position)]

    for one in _rows(trial):
        rows += [row(one.name, "whole", one.before), row("", "reduced", one.after)]
    return rows


def _speed(trial: DraftTrial) -> list[str]:
    speed = trial.speed
    if speed is None:
        return []
    before, after = speed.tokens_per_second
    slow, fast = (f"{1000 * seconds:.2f} ms" for seconds in speed.draft_seconds)
    lines = [
        f"measured: {before:.1f} to {after:.1f} tokens/s ({speed.gain:.2f}), a draft {slow} to {fast} "
        f"({speed.draft_gain:.2f});",
        f"{speed.prompts} of the prompts, medians of runs: {speed.runs}, heads in turn; output that of plain decoding"
        + ("" if speed.equal else ": NO, IT DIFFERS"),
    ]
    return [*lines, ""]


def _verdict(trial: DraftTrial, max_loss: float | None) -> list[str]:
    if max_loss is None:
        return []
    failed = trial.failed(max_loss)
    lines = [f"FAIL  {one.name} loses {one.loss:.1f} points" for one in trial.domains if one.name in failed]
    if not failed:
        lines.append(f"no domain loses more than {max_loss:g} points")
    if trial.spared:
        lines.append(f"measured and not judged, of weight 0: {', '.join(sorted(trial.spared))}")
    unclear = [one.name for one in trial.domains if one.unclear(max_loss)]
    if unclear:
        lines.append(f"not settled by so few steps: {', '.join(unclear)}: more --tokens, or more prompts")
    return lines
