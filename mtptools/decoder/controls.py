"""Controls: faults put in on purpose. Each must cost acceptance, or the run could not have seen that fault.

A wrong head changes no token of the output, so a check that only compares text cannot see it. The same variants
diagnose a dead head: if acceptance is good with the halves of `eh_proj` swapped, they are stored swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder.acceptance import first_hits
from mtptools.decoder.mtp_head import Head, HeadLayer
from mtptools.decoder.trace import Trace
from mtptools.decoder.trunk import States

__all__ = ["ALPHA", "CONTROLS", "Control", "ControlResult", "diagnose", "run_controls"]

ALPHA: Final = 0.01
"""A control hurts (or helps) when a sign test over the tokens on which it and the head disagree says so this surely."""

MIN_GAIN: Final = 0.1
MIN_RATIO: Final = 1.25
"""A diagnosis needs a variant that wins at least this much acceptance, absolutely and as a multiple."""

DEAD: Final = 0.1
"""Below this acceptance of the first draft a head is called dead."""


@dataclass(frozen=True, slots=True)
class Control:
    """name for tables; cure completes "with …, acceptance is 71 %"; hits says which first drafts are right.

    plausible  whether a head so changed could be the intended one; if not, it is no diagnosis
    must_hurt  False for a variant tried only as a diagnosis: RMSNorm's output scale hardly matters to some heads
    draft      number of the draft it is about; where no layer of its own makes that one there is no such control
    """

    name: str
    cure: str
    hits: Callable[[Head, Trace], NDArray[np.bool_]]
    plausible: Callable[[Head], bool] = lambda head: True
    must_hurt: bool = True
    draft: int = 1


def _with_layers(change: Callable[[HeadLayer], HeadLayer]) -> Callable[[Head, Trace], NDArray[np.bool_]]:
    return lambda head, trace: first_hits(replace(head, layers=tuple(change(layer) for layer in head.layers)), trace)


def _norms_above_one(head: Head) -> bool:
    """Norms that lose 1 must stay positive on the whole: turning every sign at once nearly cancels out."""
    norms = [norm for layer in head.layers for norm in (layer.embed_norm, layer.hidden_norm, layer.norm)]
    return bool(torch.cat(norms).mean() > 1.25)


def _other_tap(head: Head, trace: Trace) -> NDArray[np.bool_]:
    return first_hits(head.rewired(tap="pre" if head.wiring.tap == "post" else "post"), trace)


def _late_state(head: Head, trace: Trace) -> NDArray[np.bool_]:
    states = _tapped(trace.states, head)
    return first_hits(head, trace, torch.cat((states[:1], states[:-1])))


def _late_token(head: Head, trace: Trace) -> NDArray[np.bool_]:
    return first_hits(head, trace, lag=1)


def _tapped(states: States | None, head: Head) -> Tensor:
    assert states is not None
    return states.tap(head.wiring.tap)


def _other_recycle(head: Head, trace: Trace) -> NDArray[np.bool_]:
    return first_hits(head.rewired(recycle="pre" if head.wiring.recycle == "post" else "post"), trace, draft=2)


CONTROLS: Final = (
    Control("swapped halves", "the halves of eh_proj swapped", _with_layers(HeadLayer.swapped)),
    Control("other tap", "the trunk state taken on the other side of the final norm", _other_tap),
    Control("shifted state", "the trunk state of the position before", _late_state),
    Control("shifted token", "the embedding of the token before", _late_token),
    Control(
        "norms without +1",
        "1 subtracted from every norm of the head",
        _with_layers(lambda layer: layer.shifted(-1.0)),
        _norms_above_one,
    ),
    Control("other recycle", "the head state recycled on the other side of its norm", _other_recycle, draft=2),
    Control(
        "norms with +1",
        "1 added to every norm of the head",
        _with_layers(lambda layer: layer.shifted(1.0)),
        must_hurt=False,
    ),
)


@dataclass(frozen=True, slots=True)
class ControlResult:
    """acceptance of its draft with the fault, base without it; lost and gained: tokens that changed sides.

    verdict  "hurts", "helps" or "no power" (the prompts cannot tell the two apart)
    """

    name: str
    cure: str
    acceptance: float
    base: float
    lost: int
    gained: int
    verdict: str
    plausible: bool = True
    must_hurt: bool = True
    draft: int = 1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _chance(wins: int, losses: int) -> float:
    """Probability of at least `wins` heads in wins + losses throws of a fair coin."""
    n = wins + losses
    return float(sum(comb(n, i) for i in range(wins, n + 1)) / 2**n)


def run_controls(head: Head, traces: Sequence[Trace]) -> list[ControlResult]:
    """Every control on plain traces that kept their trunk states. Empty when there is nothing to compare."""
    results: list[ControlResult] = []
    bases: dict[int, NDArray[np.bool_]] = {}
    if not any(len(trace.tokens) > 1 for trace in traces):
        return results
    for control in CONTROLS:
        if control.draft > 1 and not _goes_on(head, control.draft):
            continue
        if control.draft not in bases:
            bases[control.draft] = np.concatenate([first_hits(head, trace, draft=control.draft) for trace in traces])
        if not bases[control.draft].size:
            continue
        hits = np.concatenate([control.hits(head, trace) for trace in traces])
        results.append(_judged(control, head, bases[control.draft], hits))
    return results


def _goes_on(head: Head, draft: int) -> bool:
    """Does a layer of its own make that draft, from a state that could be recycled otherwise?"""
    wiring = head.wiring
    return draft <= head.depth and wiring.recurrence != "first" and wiring.recycle != "streams"


def _judged(control: Control, head: Head, base: NDArray[np.bool_], hits: NDArray[np.bool_]) -> ControlResult:
    lost, gained = int((base & ~hits).sum()), int((hits & ~base).sum())
    if _chance(lost, gained) < ALPHA:
        verdict = "hurts"
    elif _chance(gained, lost) < ALPHA:
        verdict = "helps"
    else:
        verdict = "no power"
    scores = float(hits.mean()), float(base.mean())
    return ControlResult(
        control.name,
        control.cure,
        *scores,
        lost,
        gained,
        verdict,
        control.plausible(head),
        control.must_hurt,
        control.draft,
    )


def diagnose(results: Sequence[ControlResult]) -> str | None:
    """What a control explains about a bad head; None when the head is as good as any variant of it."""
    if not results:
        return None
    helping = [
        r
        for r in results
        if r.plausible and r.verdict == "helps" and r.acceptance >= max(r.base + MIN_GAIN, r.base * MIN_RATIO)
    ]
    if helping:
        best = max(helping, key=lambda r: (-r.draft, r.acceptance))
        which = {1: "first", 2: "second"}[best.draft]
        return (
            f"with {best.cure}, acceptance of the {which} draft is {best.acceptance:.0%}; as it stands it is "
            f"{best.base:.0%}"
        )
    base = results[0].base
    if base < DEAD:
        return f"acceptance of the first draft is {base:.0%}, and no control explains it"
    return None
