"""The HTML report: well-formed, self-contained, readable, and nothing in it is markup but what we wrote."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mtptools.report.html import html_report
from mtptools.report.html.embedded import read_embedded
from mtptools.report.html.style import STYLE
from mtptools.report.levels import percent
from tests.report import made

VOID = {"meta", "rect", "line", "br"}
OURS = set(
    re.findall(
        r"\w+",
        """html head meta title style body main header footer nav section div p span b bdi a h1 h2 h3 ul li dl dt dd
        table caption thead tbody tr th td pre code figure figcaption svg desc rect line text script""",
    )
)


class Page(HTMLParser):
    """Elements in order, and the text of the page without style and data."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module", params=["whole", "hostile"])
def shown(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str, Page]:
    data = made.whole()
    data = made.hostile(data) if request.param == "hostile" else data
    text = html_report(data)
    return data, text, Page(text)


def test_only_our_markup(shown: tuple[dict[str, Any], str, Page]) -> None:
    """Names that are markup add no element and no attribute; nothing runs, and nothing is loaded."""
    _, text, page = shown
    assert {name for name, _ in page.elements} <= OURS
    assert [attrs["type"] for attrs in page.of("script")] == ["application/json"]
    for _, attrs in page.elements:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "style", "srcset")]
        assert str(attrs.get("href") or "#").startswith("#")
    assert "url(" not in text
    assert "@import" not in text
    policy = next(attrs["content"] for attrs in page.of("meta") if attrs.get("http-equiv"))
    assert "default-src 'none'" in str(policy)


def test_links_and_labels_lead_somewhere(shown: tuple[dict[str, Any], str, Page]) -> None:
    _, _, page = shown
    ids = [attrs["id"] for _, attrs in page.elements if attrs.get("id")]
    assert len(ids) == len(set(ids))
    named = [key for _, attrs in page.elements for key in str(attrs.get("aria-labelledby") or "").split()]
    named += [str(attrs["href"])[1:] for attrs in page.of("a")]
    assert set(named) <= set(ids)
    pictures = [attrs for attrs in page.of("svg") if attrs.get("role") == "img"]
    assert len(pictures) >= 4
    assert len(page.of("desc")) == len(pictures)


def test_nothing_unseen(shown: tuple[dict[str, Any], str, Page]) -> None:
    """No control character, mark that turns the text, or half a character is in the file; their numbers are shown."""
    data, text, page = shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    if made.HOSTILE in str(data["path"]):
        for name in ("U+202E", "U+001B", "U+D800", "<script>alert(1)</script>"):
            assert name in page.text


def test_it_can_be_read_back(shown: tuple[dict[str, Any], str, Page]) -> None:
    data, text, _ = shown
    assert read_embedded(text) == data


def test_facts(shown: tuple[dict[str, Any], str, Page]) -> None:
    """What was measured is in the page, failures first."""
    data, _, page = shown
    decoder = data["decoder"]
    for row in (*decoder["acceptance"], *data["baseline"]["acceptance"]):
        assert percent(row["rate"]) in page.text
    for part in decoder["categories"].values():
        assert percent(part["acceptance"][-1]["rate"]) in page.text
    for control in decoder["controls"]:
        assert not control["must_hurt"] or percent(control["acceptance"]) in page.text
    for word in ("Once upon⏎", "near-tie", "router-tie", "defect", "before⏎it", "one note", "FAIL"):
        assert word in page.text
    assert page.text.index("L2 parity: prompt 1 differs") < page.text.index("Lineage")


def test_columns_are_as_tall_as_their_numbers() -> None:
    data = made.verification()
    text = html_report(data)
    picture = re.findall(r"<svg class=\"chart\".*?</svg>", text, re.DOTALL)[0]
    drawn = [float(tall) for tall in re.findall(r'<rect class="fill" [^>]*?height="([\d.]+)"', picture)]
    rows = data["decoder"]["acceptance"]
    deepest = max(row["k"] for row in rows)
    stated = [row["per_position"][at] for at in range(deepest) for row in rows if at < row["k"]]
    assert [tall / 170 for tall in drawn] == pytest.approx(stated, abs=0.001)


@pytest.mark.parametrize("missing", ["decoder", "baseline", "artifact", "command", "runtime", "stream"])
def test_what_is_not_there_is_left_out(missing: str) -> None:
    data = {**made.whole(), missing: None}
    assert Page(html_report(data)).text


def test_a_bench_has_no_lineage() -> None:
    data = made.verification()
    page = Page(html_report({key: data[key] for key in ("path", "ok", "failures", "version", "decoder")}))
    assert "L0" not in page.text
    assert "L2" in page.text


def luminance(colour: str) -> float:
    wide = "".join(c * 2 for c in colour) if len(colour) == 3 else colour
    parts = [int(wide[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("number", [0, 1], ids=["light", "dark"])
def test_contrast(number: int) -> None:
    """WCAG 2: 4.5 and more for every colour that text has, on each ground that it stands on."""
    palettes = [dict(re.findall(r"--([\w-]+): #([0-9a-f]{3,6})", part)) for part in STYLE.split(":root {")[1:3]]
    colours = {name: luminance(value) for name, value in palettes[number].items()}
    pairs = [(name, "page") for name in ("ink", "muted", "accent", "good", "bad", "warn")]
    pairs += [(tone, f"{tone}-ground") for tone in ("good", "bad", "warn")]
    pairs += [("ink", "bad-ground"), ("ink", "warn-ground"), ("ink", "panel"), ("muted", "panel")]
    for text, ground in pairs:
        light, dark = sorted((colours[text], colours[ground]), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_headings_descend() -> None:
    levels = [int(name[1]) for name, _ in Page(html_report(made.whole())).elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_one_pass(tmp_path: Path) -> None:
    """--stream, with another checkpoint beside it."""
    text = tmp_path / "text.txt"
    text.write_text("The men who worked on the boats went out in the morning. " * 8)
    full = made.GGUF / "model-BF16.gguf"
    data = made.said("verify", full, "--stream", "--text", text, "--k", "2", "--against", full)
    page = Page(html_report(data))
    stream = data["stream"]
    for share in (*stream["rates"]["conditional"], stream["trunk"]["agreement"], stream["controls"][0]["acceptance"]):
        assert percent(share) in page.text
    assert "the same, layer by layer" in page.text
    assert "not run" in page.text, "a pass does not compare decoding modes"
