"""The classic acceptance rule: a draft is taken with a chance that leaves the target's distribution unchanged.

Leviathan et al. (arXiv:2211.17192) and Chen et al. (arXiv:2302.01318): a draft x drawn from q is accepted with
probability min(1, p(x) / q(x)); else a token is drawn from max(p - q, 0), normalised. p and q are what the target's and
the draft's chains leave, filters and penalties included. A draft that was not drawn at all (an argmax) is a q with
everything on one token. A rejected draft is never drawn again (p < q there), so a draft was accepted exactly when it
is the emitted token.

Random numbers are keyed by (seed, position, purpose): a position that is drafted again after a rejection before it uses
the same ones, which is sound, since nothing before a position depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.sampling import ACCEPT, draw, numbers

__all__ = ["Proposal", "keep_probability", "residual", "settle"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft and the distribution [vocab] it was drawn from; None: it was sure."""

    token: int
    q: NDArray[np.float64] | None = None

    def chance(self) -> float:
        return 1.0 if self.q is None else float(self.q[self.token])


def keep_probability(p: NDArray[np.float64], proposal: Proposal) -> float:
    """The chance that a proposal is accepted where the target's distribution is p [vocab]."""
    chance = proposal.chance()
    return min(1.0, float(p[proposal.token]) / chance) if chance > 0 else float(p[proposal.token] > 0)


def residual(p: NDArray[np.float64], proposal: Proposal) -> NDArray[np.float64]:
    """What is drawn from after a rejection, [vocab]: normalised max(p - q, 0)."""
    left = p.copy() if proposal.q is None else np.maximum(p - proposal.q, 0.0)
    left[proposal.token] = 0.0
    total = left.sum()
    return np.asarray(left / total) if total > 0 else p  # no rest: p is q but for rounding


def settle(p: NDArray[np.float64], proposal: Proposal | None, seed: int, position: int) -> int:
    """The token for `position`: the proposal if it is accepted, else a draw. Without a proposal a draw from p."""
    if proposal is not None:
        if numbers(seed, position, ACCEPT, 1)[0] < keep_probability(p, proposal):
            return proposal.token
        p = residual(p, proposal)
    with np.errstate(divide="ignore"):
        return draw(np.log(p), seed, position)
