"""Generated pages are current."""

from __future__ import annotations

from pathlib import Path

from mtptools.decoder import FAMILIES
from mtptools.families.listing import markdown

DOCS = Path(__file__).parents[1] / "docs"


def test_families_page_is_current() -> None:
    page = (DOCS / "families.md").read_text(encoding="utf-8")
    assert page == markdown(FAMILIES), "mtptools families --markdown > docs/families.md"
