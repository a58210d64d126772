"""A sweep as a picture: mean accepted length, and the modelled speed-up, against what a draft reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Final

from mtptools.report.bench import conditions
from mtptools.report.plot import COLOURS, GREY, saved, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mtptools.report.choice import Choice, Sweep, Tried

__all__ = ["plot_sweep"]

_UNITS: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0.0, "B"))
_MARGIN: Final = 0.08
_GAP: Final = 0.032  # of the width, between the names of two heads


def plot_sweep(sweep: Sweep, kind: str) -> bytes:
    """The picture. kind is "svg" or "png"."""
    from matplotlib.figure import Figure

    choice = sweep.choice
    largest = max(one.draft_bytes for one in sweep.tried)
    size, unit = next((size, unit) for size, unit in _UNITS if largest >= size)
    with settings():
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        figure.suptitle(
            f"{sweep.path}: k={sweep.k}, {sweep.prompts} prompts, {sweep.n_tokens} tokens each, "
            f"{conditions(sweep.fingerprint)}",
            fontsize=9,
        )
        lengths, speedups = figure.subplots(1, 2)
        lengths.axhline(
            choice.wanted,
            color=GREY,
            linewidth=1,
            linestyle=":",
            label=f"{sweep.tolerance:.1%} below {choice.reference.label}",
        )
        _draw(lengths, sweep, choice, size, lambda one: one.measured.mean_length, lambda one: one.measured.error)
        _draw(speedups, sweep, choice, size, lambda one: one.speedup)
        lengths.set_ylabel("mean accepted length ± standard error")
        speedups.set_ylabel("speed-up, a model of bytes read")
        for axes in (lengths, speedups):
            axes.set_xlabel(f"a draft reads, {unit}")
        handles, names = lengths.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names))
        return saved(figure, kind)


def _draw(
    axes: Axes,
    sweep: Sweep,
    choice: Choice,
    size: float,
    value: Callable[[Tried], float],
    error: Callable[[Tried], float] = lambda one: 0.0,
) -> None:
    """A line of types without importance, one with; the head as it is apart; a ring around the chosen one."""
    from mtptools.report.choice import AS_IT_IS

    types = sorted((one for one in sweep.tried if one.name != AS_IT_IS), key=lambda one: one.order)
    lines = {weighted: [one for one in types if one.weighted is weighted] for weighted in (False, True)}
    for colour, (weighted, some) in zip(COLOURS, lines.items(), strict=False):
        if not some:
            continue
        where, heights, errors = (
            [made(one) for one in some] for made in (lambda o: o.draft_bytes / size, value, error)
        )
        kind = "weighted by imatrix" if weighted else "not weighted"
        if any(errors):
            shown = [one if isfinite(one) else 0.0 for one in errors]
            axes.errorbar(where, heights, yerr=shown, fmt="none", color=colour, alpha=0.45, capsize=4 - 2 * weighted)
        axes.plot(where, heights, marker="o", color=colour, label=kind if lines[True] else "types")
    own = next(one for one in sweep.tried if one.name == AS_IT_IS)
    if isfinite(error(own)) and error(own):
        axes.errorbar([own.draft_bytes / size], [value(own)], yerr=[error(own)], fmt="none", color=GREY, alpha=0.6)
    axes.plot([own.draft_bytes / size], [value(own)], "s", color=GREY, markersize=6, label=AS_IT_IS)
    chosen = choice.chosen
    (ring,) = axes.plot([chosen.draft_bytes / size], [value(chosen)], "o", label=f"to publish: {chosen.label}")
    ring.set(markersize=12, color=COLOURS[2], markerfacecolor="none")
    _name(axes, {one.name: one.draft_bytes / size for one in (*types, own)})


def _name(axes: Axes, places: dict[str, float]) -> None:
    """Names above the picture, each over its line or as near as others let it."""
    names = sorted(places, key=lambda name: places[name])
    where = [places[name] for name in names]
    low, high = where[0], where[-1]
    margin = _MARGIN * (high - low or high)
    axes.set_xlim(low - margin, high + margin)
    axes.xaxis.grid(visible=False)
    for name, x, to in zip(names, where, apart(where, _GAP * (high - low + 2 * margin)), strict=True):
        axes.axvline(x, color=GREY, linewidth=0.6, alpha=0.25)
        axes.annotate(
            name,
            (x, 1.0),
            (to, 1.05),
            xycoords=axes.get_xaxis_transform(),
            textcoords=axes.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=7,
            arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "alpha": 0.5, "shrinkA": 0, "shrinkB": 0},
        )


def apart(where: Sequence[float], gap: float) -> list[float]:
    """Rising places moved as little as can be (least squares) until neighbours are `gap` apart."""
    groups: list[tuple[float, int]] = []  # mean of x - gap * number, and how many share it
    for number, x in enumerate(where):
        mean, count = x - gap * number, 1
        while groups and groups[-1][0] > mean:
            before, many = groups.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        groups.append((mean, count))
    flat = [mean for mean, count in groups for _ in range(count)]
    return [mean + gap * number for number, mean in enumerate(flat)]
