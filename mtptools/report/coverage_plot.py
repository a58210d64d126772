"""Coverage as a picture: what cannot be drafted, against the size of the draft vocabulary, a line for each domain."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import log2, log10
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mtptools.report.coverage import name_of
from mtptools.report.plot import COLOURS, GREY, STYLES, saved, settings
from mtptools.report.sweep_plot import apart
from mtptools.vocab.counting import Counted
from mtptools.vocab.coverage import curve, unseen_counts, weighted
from mtptools.vocab.ranking import TARGET, Ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    _Lines = Mapping[str, NDArray[np.float64]]

__all__ = ["plot_coverage"]

_POINTS: Final = 240
_LEAST: Final = 1e-4
"""Share at which the picture ends: 0.01 % of a held-out text is a handful of tokens."""
_WIDEST: Final = 64  # the largest size by the smallest
_LINE: Final = 0.045  # of the height, between the names of two lines


def plot_coverage(
    counted: Sequence[Counted], ranking: Ranking, weights: Mapping[str, float], size: int | None, kind: str
) -> bytes:
    """The picture. size is the one chosen, to be marked; kind is "svg" or "png". Raises UsageError (weights)."""
    from matplotlib.figure import Figure

    by_domain = weighted(counted, weights)
    # Behind the tokens seen their order says nothing: the lines end there, or at the size chosen.
    end = min(max(ranking.seen, size or 0, 2 * ranking.kept, 2), len(ranking.ids))
    start = max(ranking.kept, end // _WIDEST, 1)
    sizes = np.unique(np.geomspace(start, end, _POINTS).astype(np.int64))
    held = {one.domain: unseen_counts(one, by_domain[one.domain]) for one in counted}
    lost = {domain: 1 - curve(ranking.ids, counts)[sizes] for domain, counts in held.items()}
    with settings():
        figure = Figure(figsize=(8.5, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        some = np.concatenate([values[values >= _LEAST] for values in lost.values()])
        least, most = (some.min(), some.max()) if len(some) else (_LEAST, _LEAST)
        axes.set_ylim(min(0.8 * least, (1 - TARGET) / 2), min(1.0, max(1.3 * most, 2 * (1 - TARGET))))
        axes.set_xlim(sizes[0], end)
        for number, (domain, values) in enumerate(lost.items()):
            style = STYLES[number // len(COLOURS) % len(STYLES)] if by_domain[domain] else ":"
            drawn = np.where(values < _LEAST, np.nan, values)
            axes.plot(sizes, drawn, color=COLOURS[number % len(COLOURS)], linestyle=style)
        _mark(axes, int(sizes[0]), end, size)
        _ticks(axes, int(sizes[0]), end)
        _names(axes, sizes, lost, by_domain)
        axes.set_xlabel(f"tokens in the draft vocabulary, of {ranking.size:,}")
        axes.set_ylabel("of held-out text, cannot be drafted")
        with warnings.catch_warnings():
            # A domain may be called 中文, which matplotlib's own font cannot draw; an SVG is drawn with the reader's.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            return saved(figure, kind)


def _mark(axes: Axes, start: int, end: int, size: int | None) -> None:
    axes.axhline(1 - TARGET, color=GREY, linewidth=1, linestyle="--")
    axes.annotate(
        f"{TARGET:.1%} covered", (0.006, 1 - TARGET), (0, -3), xycoords=axes.get_yaxis_transform(),
        textcoords="offset points", va="top", fontsize=8, color=GREY,
    )  # fmt: skip
    if size is not None and start <= size <= end:
        axes.axvline(size, color=GREY, linewidth=1)
        axes.annotate(
            f"{size:,}", (size, 1.0), (0, 3), xycoords=axes.get_xaxis_transform(), textcoords="offset points",
            ha="center", va="bottom", fontsize=8, color=GREY,
        )  # fmt: skip


def _ticks(axes: Axes, start: int, end: int) -> None:
    sizes = [1 << power for power in range(3, 40) if start <= 1 << power <= end]
    axes.set_xticks(sizes, [name_of(size) for size in sizes])
    axes.xaxis.set_minor_locator(_nothing())
    low, high = axes.get_ylim()
    shares = [share for share in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001) if low <= share <= high]
    axes.set_yticks(shares, [f"{100 * share:g} %" for share in shares])
    axes.yaxis.set_minor_locator(_nothing())


def _nothing() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _names(axes: Axes, sizes: NDArray[np.int64], lost: _Lines, weights: Mapping[str, float]) -> None:
    """A name beside the right end of each line, moved up or down until each can be read."""
    low, high = (log10(value) for value in axes.get_ylim())
    least = max(10**low, _LEAST)
    left, right = (log2(value) for value in axes.get_xlim())
    ends = []
    for number, (domain, values) in enumerate(lost.items()):
        last = int(np.flatnonzero(values >= least)[-1]) if (values >= least).any() else 0
        x = (log2(sizes[last]) - left) / (right - left)
        y = (log10(max(values[last], least)) - low) / (high - low)
        ends.append((y, x, number, domain))
    ends.sort()
    places = apart([y for y, *_ in ends], _LINE)
    up = max(0.0, -places[0])  # into the picture, where many end at its foot
    for (y, x, number, domain), to in zip(ends, places, strict=True):
        colour = COLOURS[number % len(COLOURS)]
        axes.annotate(
            domain if weights[domain] else f"({domain})", (x, y), (1.02, to + up),
            xycoords="axes fraction", textcoords="axes fraction", va="center", fontsize=8.5, color=colour,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (0, 0.5)},
        )  # fmt: skip
