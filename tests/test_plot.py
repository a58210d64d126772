"""The picture of a bench: the same bytes for the same numbers, legible on white and on black."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib", reason="the plot extra is not installed")
pytest.importorskip("torch", reason="the decoder extra is not installed")

import matplotlib

from mtptools.decoder.bench import Bench, PromptTimes
from mtptools.decoder.trace import DraftCounts
from mtptools.report.plot import COLOURS, GREY, plot

FINGERPRINT = {"torch": "2", "device": "cpu", "dtype": "float32", "threads": 1, "cpu_capability": "AVX2"}


def bench(categories: tuple[str, ...] = ("_prose", "a < b & $x_1$"), ks: tuple[int, ...] = (1, 2, 4)) -> Bench:
    out = Bench(ks, 9, 1, fingerprint=FINGERPRINT)
    for number, category in enumerate(categories):
        one = PromptTimes([1], category, list(range(9)), {0: [8.0]})
        for k in ks:
            counts = DraftCounts()
            counts.add(k, min(k, number))
            one.drafts[k], one.seconds[k] = counts, [8.0 / (1 + 0.1 * k * number)]
        out.prompts.append(one)
    return out


def test_svg_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = plot(bench(), "model", "svg")
    with matplotlib.rc_context({"svg.hashsalt": "other", "lines.linewidth": 7, "figure.dpi": 30}):
        assert plot(bench(), "model", "svg") == first, "the machine's matplotlibrc says nothing"
    assert plot(bench(ks=(1, 2, 3)), "model", "svg") != first
    assert not re.search(rb"<dc:date>|\d{4}-\d\d-\d\dT|Matplotlib v", first)


def test_lines_and_labels() -> None:
    svg = ElementTree.fromstring(plot(bench(), "model $", "svg"))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("a < b & $x_1$", "all", "k=1", "k=4", "mean accepted length", "speedup over plain"):
        assert label in texts
    assert " _prose" in texts
    alone = ElementTree.fromstring(plot(bench(("", "")), "model", "svg"))
    assert "(none)" not in [element.text for element in alone.iter("{http://www.w3.org/2000/svg}text")]


def test_many_categories() -> None:
    names = tuple(f"kind {n}" for n in range(30))
    assert b">kind 29<" in plot(bench(names, (1,)), "model", "svg")


def test_png() -> None:
    data = plot(bench(), "model", "png")
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data == plot(bench(), "model", "png")
    assert b"Software" not in data


def luminance(colour: str) -> float:
    """Of sRGB, as WCAG 2 defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", [*COLOURS, GREY])
def test_contrast_on_white_and_on_black(colour: str) -> None:
    """3 : 1, what WCAG 2 asks of graphics, on white and on the dark page of a code host (#0d1117)."""
    own = luminance(colour)
    assert 1.05 / (own + 0.05) >= 3
    assert (own + 0.05) / (luminance("#0d1117") + 0.05) >= 3


def test_only_a_picture_is_replaced(tmp_path: Path) -> None:
    from mtptools.errors import UsageError
    from mtptools.report.plot import check_plot, write_plot

    model, old = tmp_path / "model.svg", tmp_path / "old.svg"
    model.write_bytes(b"GGUF and so on")
    with pytest.raises(UsageError, match="no picture"):
        check_plot(model)
    write_plot(old, b"<svg/>")
    check_plot(old)
    write_plot(old, b"<svg></svg>")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["model.svg", "old.svg"]
    assert old.read_bytes() == b"<svg></svg>"
