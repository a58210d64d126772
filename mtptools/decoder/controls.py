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

from mtptools.decoder.acceptance import first_hits, tapped_states
from mtptools.decoder.mtp_head import Head, HeadLayer
from mtptools.decoder.trace import Trace

__all__ = [
    "ALPHA",
    "CONTROLS",
    "Control",
    "ControlResult",
    "Hits",
    "diagnose",
    "late",
    "run_controls",
    "try_controls",
]

ALPHA: Final = 0.01
"""A control hurts (or helps) when a sign test over the tokens on which it and the head disagree says so this surely."""

MIN_GAIN: Final = 0.1
MIN_RATIO: Final = 1.25
"""A diagnosis needs a variant that wins at least this much acceptance, absolutely and as a multiple."""

ALIVE: Final = 0.2
"""And that then accepts so much: one dead head may by chance be a little less dead than another."""

DEAD: Final = 0.1
"""Below this acceptance of the first draft a head is called dead."""


@dataclass(frozen=True, slots=True)
class Control:
    """name for tables; cure completes "with …, acceptance is 71 %".

    change      the head with the fault
    late_state  the trunk state of the position before is fed;  late_token  1: the embedding of the token before
    plausible   whether a head so changed could be the intended one; if not, it is no diagnosis
    must_hurt   False for a variant tried only as a diagnosis: RMSNorm's output scale hardly matters to some heads
    draft       number of the draft it is about; where no layer of its own makes that one there is no such control
    """

    name: str
    cure: str
    change: Callable[[Head], Head] = lambda head: head
    late_state: bool = False
    late_token: int = 0
    plausible: Callable[[Head], bool] = lambda head: True
    must_hurt: bool = True
    draft: int = 1


Hits = Callable[[Head, Control], NDArray[np.bool_]]
"""Reads a head with a control's fault: which of its drafts are right, always of the same tokens in the same order."""

NO_FAULT: Final = Control("as it is", "nothing changed")


def _with_layers(change: Callable[[HeadLayer], HeadLayer]) -> Callable[[Head], Head]:
    return lambda head: replace(head, layers=tuple(change(layer) for layer in head.layers))


def _norms_above_one(head: Head) -> bool:
    """Norms that lose 1 must stay positive on the whole: turning every sign at once nearly cancels out."""
    norms = [norm for layer in head.layers for norm in (layer.embed_norm, layer.hidden_norm, layer.norm)]
    return bool(torch.cat(norms).mean() > 1.25)


def _other(side: str) -> str:
    return "pre" if side == "post" else "post"


CONTROLS: Final = (
    Control("swapped halves", "the halves of eh_proj swapped", _with_layers(HeadLayer.swapped)),
    Control(
        "other tap",
        "the trunk state taken on the other side of the final norm",
        lambda head: head.rewired(tap=_other(head.wiring.tap)),
    ),
    Control("shifted state", "the trunk state of the position before", late_state=True),
    Control("shifted token", "the embedding of the token before", late_token=1),
    Control(
        "norms without +1",
        "1 subtracted from every norm of the head",
        _with_layers(lambda layer: layer.shifted(-1.0)),
        plausible=_norms_above_one,
    ),
    Control(
        "other recycle",
        "the head state recycled on the other side of its norm",
        lambda head: head.rewired(recycle=_other(head.wiring.recycle)),
        draft=2,
    ),
    Control(
        "norms with +1",
        "1 added to every norm of the head",
        _with_layers(lambda layer: layer.shifted(1.0)),
        must_hurt=False,
    ),
)


def late(states: Tensor) -> Tensor:
    """States [rows, width] of one text, each in place of the next one's."""
    return torch.cat((states[:1], states[:-1]))


def of_traces(traces: Sequence[Trace]) -> Hits:
    """On plain traces that kept their trunk states."""

    def hits(head: Head, control: Control) -> NDArray[np.bool_]:
        changed, found = control.change(head), []
        for trace in traces:
            tapped = tapped_states(changed, trace)
            tapped = late(tapped) if control.late_state else tapped
            found.append(first_hits(changed, trace, tapped, control.late_token, control.draft))
        return np.concatenate(found)

    return hits


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
    return try_controls(head, of_traces(traces)) if any(len(trace.tokens) > 1 for trace in traces) else []


def try_controls(head: Head, hits: Hits) -> list[ControlResult]:
    """Every control, by a way to read the head."""
    results: list[ControlResult] = []
    bases: dict[int, NDArray[np.bool_]] = {}
    for control in CONTROLS:
        if control.draft > 1 and not _goes_on(head, control.draft):
            continue
        if control.draft not in bases:
            bases[control.draft] = hits(head, replace(NO_FAULT, draft=control.draft))
        if bases[control.draft].size:
            results.append(_judged(control, head, bases[control.draft], hits(head, control)))
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
        if r.plausible and r.verdict == "helps" and r.acceptance >= max(r.base + MIN_GAIN, r.base * MIN_RATIO, ALIVE)
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
