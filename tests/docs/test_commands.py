"""Every command in the documentation has verbs and options that exist, and every link leads somewhere."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import click
import pytest

from mtptools.cli.main import cli
from mtptools.errors import UsageError
from tests.docs.pages import PAGES, ROOT, arguments, blocks, commands

CODE = re.compile(r"`(mtptools [a-z-]+ [^`]*)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def parse(line: str) -> None:
    """Raises click.ClickException or UsageError for what the command line would refuse before it opens a file."""
    words = arguments(line)
    if words[0].startswith("-"):
        return
    with cli.make_context("mtptools", words[:1], resilient_parsing=True) as ctx:
        verb = cli.get_command(ctx, words[0])
        if verb is None:
            raise click.UsageError(f"no such verb: {words[0]}")
        with contextlib.suppress(click.exceptions.Exit):  # --help
            verb.make_context(words[0], words[1:], parent=ctx)


def lines_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = [line for line in CODE.findall(prose.replace("\n", " ")) if complete(line)]
    return commands(text) + inline


def complete(line: str) -> bool:
    """In a sentence a command may stand for its kind: `mtptools families -v` is one, `verify --head` is not."""
    return not re.search(r"\b(SRC|PATH|OUT|DONOR|TRUNK|VERB)\b", line)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_parse(path: Path) -> None:
    wrong = []
    for line in lines_of(path):
        try:
            parse(line)
        except (click.ClickException, UsageError) as error:
            wrong.append(f"{line}\n    {error.message if isinstance(error, click.ClickException) else error}")
    assert not wrong, "\n".join(wrong)


def test_there_are_commands() -> None:
    """The search finds them: a page without any would pass."""
    assert sum(len(lines_of(path)) for path in PAGES) > 80
    assert len(lines_of(ROOT / "README.md")) >= 5


@pytest.mark.parametrize("line", ["mtptools graft a.gguf b.gguf", "mtptools verify x --no-such", "mtptools grafft a b"])
def test_a_wrong_command_is_found(line: str) -> None:
    with pytest.raises((click.ClickException, UsageError)):
        parse(line)


def anchors(path: Path) -> set[str]:
    """What GitHub makes of a page's headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for _, block in blocks(text):
        text = text.replace(block, "")
    for link in LINK.findall(text):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
