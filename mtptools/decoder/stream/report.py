"""What one pass over a model found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.acceptance import Acceptance
from mtptools.decoder.controls import ControlResult
from mtptools.decoder.stream.rates import Rates

__all__ = ["QUANTILES", "Compared", "StreamReport", "TrunkFacts"]

QUANTILES: Final = (0.001, 0.01, 0.1, 0.5)

FOREIGN: Final = 0.01
"""Agreement below which a text is not one that the model could have been trained on."""

SEEN: Final = 100
"""Positions from which on that is no chance."""


@dataclass(frozen=True)
class TrunkFacts:
    """counted   positions with a next token that count
    agreement    share of them at which the trunk's first choice is the text's token
    loss         mean negative log-likelihood of the text, nats per token
    margins      quantiles of best minus second logit, at `QUANTILES`;  ties  exact ones
    """

    counted: int
    agreement: float
    loss: float
    margins: tuple[float, ...]
    ties: int

    @property
    def foreign(self) -> bool:
        """Does the trunk make nothing of the text?"""
        return self.counted >= SEEN and self.agreement < FOREIGN

    @classmethod
    def of(cls, agreed: NDArray[np.bool_], likelihood: NDArray[np.float64], margins: NDArray[np.float32]) -> TrunkFacts:
        points = tuple(float(x) for x in np.quantile(margins, QUANTILES))
        return cls(len(agreed), float(agreed.mean()), float(-likelihood.mean()), points, int((margins == 0).sum()))

    def to_json(self) -> dict[str, Any]:
        return {
            "counted": self.counted,
            "agreement": self.agreement,
            "loss": self.loss,
            "perplexity": exp(min(self.loss, 700)),
            "margins": dict(zip(map(str, QUANTILES), self.margins, strict=True)),
            "ties": self.ties,
        }


@dataclass(frozen=True)
class Compared:
    """Another checkpoint on the same text.

    shared       layers whose bytes and states are the same in both, and were computed once
    drift        per layer: root mean square of the states' difference, as a share of theirs
    flips        positions at which the first choice differs;  flip_median, flip_most: the first one's margins there
    divergence   mean Kullback-Leibler divergence of the other's distribution from this one's, nats
    largest      and its largest value;  rates  the other's acceptance
    """

    name: str
    shared: int
    drift: tuple[float, ...]
    flips: int
    flip_median: float
    flip_most: float
    divergence: float
    largest: float
    trunk: TrunkFacts
    rates: Rates | None

    def to_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("name", "shared", "drift", "flips", "flip_median", "flip_most")},
            "divergence": {"mean": self.divergence, "max": self.largest},
            "trunk": self.trunk.to_json(),
            "rates": None if self.rates is None else self.rates.to_json(),
        }


@dataclass
class StreamReport:
    """own_text  the text is what the trunk itself would write: then `walked` has the loop's own counts per k

    nbytes, seconds  what this run read, and how long it took
    layers           of the trunk's n_layers, those that it went through itself: the first are kept states' where it
                     went on
    memory           what it was planned to take, None where nobody planned
    """

    passages: int
    positions: int
    text_digest: str
    trunk: TrunkFacts
    rates: Rates | None
    own_text: bool = False
    walked: list[Acceptance] = field(default_factory=list)
    controls: list[ControlResult] = field(default_factory=list)
    control_rows: int = 0
    diagnosis: str | None = None
    compared: Compared | None = None
    layers: Sequence[int] = ()
    n_layers: int = 0
    memory: dict[str, Any] | None = None
    nbytes: int = 0
    seconds: float = 0.0
    fingerprint: dict[str, Any] = field(default_factory=dict)

    @property
    def powerless(self) -> list[str]:
        """Controls that did not hurt: faults this text cannot see."""
        return [result.name for result in self.controls if result.must_hurt and result.verdict == "no power"]

    @property
    def went_on_after(self) -> int:
        """Layers whose states an earlier run had kept."""
        return self.n_layers - len(self.layers)

    @property
    def warnings(self) -> list[str]:
        """What makes the numbers doubtful, whatever they are."""
        if not self.trunk.foreign:
            return []
        return [
            f"the trunk would have chosen {self.trunk.agreement:.1%} of the text's tokens: another language, a text "
            "that is none, or the tokenizer of another model"
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "passages": self.passages,
            "positions": self.positions,
            "text_digest": self.text_digest,
            "trunk": self.trunk.to_json(),
            "rates": None if self.rates is None else self.rates.to_json(),
            "own_text": self.own_text,
            "walked": [one.to_json() for one in self.walked],
            "controls": [result.to_json() for result in self.controls],
            "control_rows": self.control_rows,
            "powerless": self.powerless,
            "diagnosis": self.diagnosis,
            "warnings": self.warnings,
            "compared": None if self.compared is None else self.compared.to_json(),
            "layers": list(self.layers),
            "n_layers": self.n_layers,
            "went_on_after": self.went_on_after,
            "bytes": self.nbytes,
            "seconds": self.seconds,
            "fingerprint": self.fingerprint,
        }
