"""How sure the trunk was along the texts: margins of its best token, as a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from mtptools.decoder.stream.report import QUANTILES
from mtptools.decoder.trace import Trace

__all__ = ["EDGES", "Margins"]

EDGES: Final = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Lower edges of the bins, in logits; the last one has no upper edge."""


@dataclass(frozen=True)
class Margins:
    """Best minus second logit of every emitted token.

    counts  per bin of `EDGES`;  ties  exact ones;  quantiles  at `QUANTILES`
    """

    counted: int
    counts: tuple[int, ...]
    ties: int
    quantiles: tuple[float, ...]

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Margins | None:
        """None when nothing was emitted."""
        values = np.array([margin for trace in traces for margin in trace.margins], dtype=np.float64)
        if not values.size:
            return None
        counts, _ = np.histogram(values, bins=[*EDGES, np.inf])
        points = tuple(float(x) for x in np.quantile(values, QUANTILES))
        return cls(len(values), tuple(int(n) for n in counts), int((values == 0).sum()), points)

    def to_json(self) -> dict[str, Any]:
        return {
            "counted": self.counted,
            "edges": list(EDGES),
            "counts": list(self.counts),
            "ties": self.ties,
            "quantiles": dict(zip(map(str, QUANTILES), self.quantiles, strict=True)),
        }
