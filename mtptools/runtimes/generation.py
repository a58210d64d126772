"""What a runtime made of one prompt, and what every runtime can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["TOP", "Drafts", "Engine", "Generation"]

TOP: Final = 10
"""Most probable tokens asked for at every position."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """A runtime's own counts.

    steps     verify steps, None where the runtime does not say
    position  accepted drafts by draft position, None where it does not say
    """

    drafted: int
    accepted: int
    steps: int | None = None
    position: tuple[int, ...] | None = None

    @property
    def rate(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True, slots=True)
class Generation:
    """Greedy tokens after a prompt.

    top      per token, log-probabilities (nats) of the most probable ones by id; empty where the runtime gave none
    banned   ids that the runtime cannot emit: those that end a text, where it was told to go on
    drafts   of this prompt alone; None where the runtime does not count
    seconds  of decoding, without reading the prompt where the runtime tells them apart
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    top: tuple[Mapping[int, float], ...]
    banned: frozenset[int] = frozenset()
    drafts: Drafts | None = None
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds if self.seconds > 0 else 0.0


class Engine(Protocol):
    """A running server. name and version as it says; how: the way it was started, or where it is."""

    name: str
    version: str
    how: str

    def generate(self, prompt: Sequence[int], n: int) -> Generation:
        """n greedy tokens after token ids. Raises SystemFailure for whatever is not such an answer."""
