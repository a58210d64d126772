"""Which wiring does a head want? Every variant that runtimes disagree on, measured on the same text.

Tap, recycle, position 0 and recurrence change no shape and no output of the trunk: acceptance alone tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from mtptools.decoder.acceptance import Acceptance, simulate, total
from mtptools.decoder.mtp_head import RECURRENCES, Head, HeadWiring
from mtptools.decoder.trace import Trace

__all__ = ["Probed", "probe", "variants"]


@dataclass(frozen=True, slots=True)
class Probed:
    """Acceptance of one variant.

    stated  it is the wiring the head was loaded with
    deep    the head has several layers, so that their turns matter
    """

    wiring: HeadWiring
    acceptance: Acceptance
    stated: bool
    deep: bool

    def to_json(self) -> dict[str, Any]:
        return {"wiring": asdict(self.wiring), "stated": self.stated, "acceptance": self.acceptance.to_json()}


def variants(head: Head, streams: int = 1) -> Iterator[HeadWiring]:
    """The head's own wiring first, then every other one. Streams have one tap and one way to go on."""
    states = ("post", "pre") if streams == 1 else ("streams",)
    recurrences = RECURRENCES if head.depth > 1 else (head.wiring.recurrence,)
    yield head.wiring
    for tap, recycle, mask_first, recurrence in product(states, states, (False, True), recurrences):
        changed = replace(head.wiring, tap=tap, recycle=recycle, mask_first=mask_first, recurrence=recurrence)
        if changed != head.wiring:
            yield changed


def probe(
    head: Head, traces: Sequence[Trace], k: int, *, streams: int = 1, progress: Callable[[str], None] | None = None
) -> list[Probed]:
    """All variants on plain traces that kept their trunk states, best first; of equals the head's own wiring.

    k  tokens drafted per step: with one, nothing is recycled and variants that differ in that are equal
    """
    found = []
    for wiring in variants(head, streams):
        if progress is not None:
            progress(f"probe: tap {wiring.tap}, recycle {wiring.recycle}, {wiring.recurrence}")
        changed = replace(head, wiring=wiring)
        counts = total(k, [simulate(changed, trace, k) for trace in traces])
        found.append(Probed(wiring, counts, wiring == head.wiring, head.depth > 1))
    return sorted(found, key=lambda one: -one.acceptance.mean_length)
