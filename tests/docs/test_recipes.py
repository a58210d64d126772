"""Every recipe does what its page says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recipes verify with the decoder: pip install '.[decoder]'")

import mtptools.families
from mtptools.families import known_families
from tests.docs import setups
from tests.docs.pages import GUIDES, RECIPES, ROOT, Recipe, prints, recipe

FOUND = sorted(path for path in RECIPES.glob("*.md") if path.name not in (*GUIDES, "README.md"))


def prepare(page: Recipe, folder: Path) -> None:
    """What the page begins with."""
    for name, code in page.written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code, encoding="utf-8")
    written = folder / "mtptools" / "families"
    if written.is_dir():
        mtptools.families.__path__.append(str(written))
        known_families.cache_clear()
    for name, source in page.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if source.startswith("made by "):
            getattr(setups, source.removeprefix("made by "))(folder / name)
        elif (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / name)
        else:
            shutil.copy(ROOT / source, folder / name)


@pytest.fixture
def registry() -> Iterator[None]:
    """The known families, as they were afterwards."""
    before = list(mtptools.families.__path__)
    yield
    mtptools.families.__path__[:] = before
    known_families.cache_clear()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_recipe(path: Path, run: Any, registry: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = recipe(path)
    assert page.steps
    prepare(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    unused = dict(page.changes)
    programs = set()
    for step in page.steps:
        line = step.line
        for old, new in page.changes.items():
            if old in line:
                line = line.replace(old, new)
                unused.pop(old, None)
        words = type(step)(line).words
        programs.add(words[0])
        if words[0] in page.parsed:
            continue
        assert words[0] == "mtptools", f"{step.line}: run it, or name it under `only parsed`"
        code, out, err = run(*words[1:])
        assert code == step.code, f"{step.line}\n{out}{err}"
        printed = [found.strip() for found in (out + err).splitlines()]
        for shown in step.shown:
            pattern = prints(shown)
            assert any(pattern.match(found) for found in printed), f"{step.line}\nno line is: {shown}\n{out}{err}"
    assert not unused, "the table changes what no command has"
    assert page.parsed <= programs, "the table names a program that the page does not call"


def test_every_recipe_is_in_the_index() -> None:
    index = (RECIPES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(([\w-]+\.md)\)", index)) == {path.name for path in FOUND} | set(GUIDES)


def test_pages_are_short_and_alike() -> None:
    """The problem first, then commands, how to know, what can go wrong."""
    for path in FOUND:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 90, path.name
        assert "## What can go wrong" in text, path.name


def test_a_shown_line_must_be_printed() -> None:
    assert prints("L2 parity      pass: …").match("L2 parity    pass: 8 arms")
    assert not prints("L2 parity      pass: …").match("L2 parity    FAIL: 8 arms")
    assert not prints("head        no head").match("head        no header")
