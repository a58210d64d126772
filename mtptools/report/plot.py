"""A bench as a picture: acceptance by position, mean accepted length and speedup by k.

Colours and text are legible on a white page and on a dark one, the background is transparent. The same numbers give
the same bytes with one version of matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mtptools.errors import MissingExtraError, SystemFailure, UsageError
from mtptools.placing import put
from mtptools.report.bench import category_name, conditions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mtptools.decoder.bench import Bench, Gain

__all__ = ["COLOURS", "FORMATS", "GREY", "check_plot", "plot", "saved", "settings", "write_plot"]

FORMATS: Final = ("svg", "png")

PNG: Final = b"\x89PNG\r\n\x1a\n"

GREY: Final = "#808080"
"""Text, axes and the line of all prompts."""

COLOURS: Final = ("#2f80d0", "#d9622b", "#1f9e6e", "#b45fc6", "#b8860b", "#dc4b6a", "#1c96a8", "#7d8c1f")
"""Each has a contrast of 3 and more on white and on black."""

STYLES: Final = ("-", "--", ":")

# Metadata that would differ from one run or machine to the next.
METADATA: Final = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def check_plot(path: Path) -> None:
    """Refuse now what `plot` could not write later. Raises UsageError, MissingExtraError."""
    if path.suffix[1:].lower() not in FORMATS:
        raise UsageError("a plot is .svg or .png", where=path, hint=f"--plot {path.with_suffix('.svg')}")
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError("a plot cannot be written there", where=path, hint="give a file in a folder that exists")
    _require_picture(path)
    try:
        import matplotlib.figure  # noqa: F401  # only to say clearly what is missing
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "--plot") from error


def _require_picture(path: Path) -> None:
    """An earlier plot is replaced; a file that is none, whatever its name, may be somebody's model."""
    if not path.exists():
        return
    try:
        with open(path, "r+b") as file:  # writable, too
            start = file.read(len(PNG)).lstrip()
    except OSError as error:
        raise SystemFailure(
            f"a plot cannot be written there: {error.strerror or error}", where=path, hint="give another file"
        ) from error
    if start and not PNG.startswith(start) and not start.startswith(b"<"):
        raise UsageError("a file that is no picture stands there", where=path, hint="give another path")


def write_plot(path: Path, data: bytes) -> None:
    """All of it or nothing; what stood there before stays if it cannot be written. Raises SystemFailure."""
    put(path, data, "the plot")


@contextmanager
def settings() -> Iterator[None]:
    """matplotlib's defaults, whatever this machine's matplotlibrc says, and ours."""
    import matplotlib.style

    ours = {
        "svg.hashsalt": "mtptools",
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "legend.frameon": False,
        "savefig.transparent": True,
        "lines.markersize": 3.5,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "grid.color"), GREY),
        **dict.fromkeys(("xtick.color", "ytick.color"), GREY),
    }
    with matplotlib.style.context(["default", ours]):
        yield


def plot(bench: Bench, title: str, kind: str) -> bytes:
    """The picture. kind is "svg" or "png"."""
    from matplotlib.figure import Figure

    with settings():
        figure = Figure(figsize=(11, 3.9), layout="constrained")
        figure.suptitle(f"{title}: {len(bench.prompts)} prompts, {conditions(bench.fingerprint)}", fontsize=9)
        positions, lengths, speedups = figure.subplots(1, 3)
        _positions(positions, bench)
        _by_k(lengths, bench, "mean accepted length", lambda gain: gain.acceptance.mean_length)
        _by_k(speedups, bench, "speedup over plain", lambda gain: gain.speedup)
        speedups.axhline(1.0, color=GREY, linewidth=0.8, linestyle=":")
        handles, names = lengths.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 7))
        return saved(figure, kind)


def saved(figure: Figure, kind: str) -> bytes:
    """The file of a figure, within `settings`: the same bytes for the same figure."""
    out = io.BytesIO()
    figure.savefig(out, format=kind, dpi=150, metadata=METADATA[kind])
    return out.getvalue()


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": STYLES[number // len(COLOURS) % len(STYLES)]}


def _whole(axes: Axes, values: Sequence[int], label: str) -> None:
    axes.set_xticks(list(values))
    axes.set_xlabel(label)


def _positions(axes: Axes, bench: Bench) -> None:
    """One line per k, over all prompts."""
    for number, gain in enumerate(bench.gains()):
        shares = [100 * share for share in gain.acceptance.per_position]
        axes.plot(range(1, gain.k + 1), shares, marker="o", label=f"k={gain.k}", **_look(number))
    _whole(axes, range(1, max(bench.ks) + 1), "draft position")
    axes.set_ylim(0, 100)
    axes.set_title("accepted, %")
    axes.legend(fontsize=7, ncols=2)


def _by_k(axes: Axes, bench: Bench, title: str, value: Callable[[Gain], float]) -> None:
    """One line per category, and all prompts in grey."""
    for number, category in enumerate(bench.categories):
        gains = bench.gains(category)
        name = category_name(category)
        # A label that begins with an underscore would be left out of the legend.
        name = f" {name}" if name.startswith("_") else name
        axes.plot(bench.ks, [value(g) for g in gains], marker="o", label=name, **_look(number))
    axes.plot(bench.ks, [value(g) for g in bench.gains()], marker="s", color=GREY, linewidth=2.5, label="all")
    _whole(axes, bench.ks, "k")
    axes.set_title(title)
