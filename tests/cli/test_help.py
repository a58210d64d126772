"""--help of every verb: the sections of a manual page, examples that parse, lines that fit."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from mtptools.cli import manual
from mtptools.cli.help import WIDTH, Verb, wrapped
from mtptools.cli.help_pages import DOCS, GROUPS, PAGES
from mtptools.cli.main import VERBS, cli
from mtptools.errors import MtpToolsError
from tests.docs.test_commands import parse

ROOT = Path(__file__).parents[2]
EVERY = pytest.mark.parametrize("name", VERBS)


def verb_named(name: str) -> Verb:
    verb = cli.get_command(click.Context(cli), name)
    assert isinstance(verb, Verb)
    return verb


def text_of(verb: Verb, width: int = WIDTH) -> str:
    context = click.Context(verb, info_name=verb.name, terminal_width=width, help_option_names=["-h", "--help"])
    return verb.get_help(context)


@EVERY
def test_sections(name: str) -> None:
    verb = verb_named(name)
    text = text_of(verb)
    assert re.match(r"[A-Z][^.]*\.( |$)", (verb.help or "").splitlines()[0]), "the first line has a whole sentence"
    starts = [text.find(f"\n{section}:\n") for section in ("Examples", "Exit codes", "See also")]
    assert min(starts) > 0
    assert starts == sorted(starts)
    assert "-h, --help" in text
    for argument in (param for param in verb.params if isinstance(param, click.Argument)):
        explained = re.search(rf"^  {re.escape(argument.human_readable_name)} +\w", text, re.MULTILINE)
        assert explained, f"{argument.human_readable_name} is not explained: cli/help_pages.py"
    for page in (*verb.page.see, DOCS):
        assert (ROOT / page).is_file(), page


@EVERY
def test_every_option_is_shown_once(name: str) -> None:
    verb = verb_named(name)
    sections = re.split(r"^\w.*:$", text_of(verb).partition("\nExamples:")[0], flags=re.MULTILINE)[1:]
    shown = re.findall(r"^  (-[\w-]+)", "".join(sections), re.MULTILINE)
    for param in verb.params:
        if isinstance(param, click.Option) and not param.hidden:
            assert sum(word in param.opts for word in shown) == 1, param.opts
            assert param.help, param.opts


@EVERY
@pytest.mark.parametrize("width", [WIDTH, 80])
def test_lines_fit(name: str, width: int) -> None:
    """Words that are longer than the line, a choice of types for one, stand alone."""
    for line in text_of(verb_named(name), width).splitlines():
        assert len(line) <= width or len(line.split()) < 3, line


@EVERY
def test_examples_parse(name: str) -> None:
    examples = verb_named(name).examples
    assert any(line.startswith(f"mtptools {name} ") or line == f"mtptools {name}" for line in examples)
    for line in examples:
        if line.startswith("mtptools "):
            try:
                parse(line)
            except (click.ClickException, MtpToolsError) as error:
                pytest.fail(f"{line}: {error}")


def test_tables_name_what_there_is() -> None:
    """No page of a verb that is gone, no heading for an option that is gone."""
    known = {name: {param.name for param in verb_named(name).params} for name in VERBS}
    for verb, groups in GROUPS.items():
        names = set.union(*known.values()) | {"help"} if verb == "*" else known[verb]
        for heading, options in groups.items():
            assert set(options) & names, f"{verb}: nothing under {heading}"
            assert verb != "*" or set(options) <= names, f"{heading}: {set(options) - names}"
    assert set(PAGES) <= set(VERBS)


def test_long_examples_are_one_command() -> None:
    line = 'mtptools generate model.gguf -p "It was a dark night" --k 3 --temperature 1 --min-p 0.05'
    lines = wrapped(line, 50)
    assert max(map(len, lines)) <= 50
    assert "".join(part.removesuffix("\\") for part in lines).split() == line.split()
    assert not any(part.endswith("a \\") for part in lines), "a quoted word is one word"
    assert wrapped("mtptools inspect x", 50) == ["mtptools inspect x"]


def test_page_is_current() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert page == manual.markdown(), "python -m mtptools.cli.manual > docs/cli.md"


@pytest.mark.parametrize("name", ["verify", "check", "bench", "generate", "imatrix", "quantize", "prune-vocab"])
def test_verbs_that_decode_say_where_there_is_no_decoder(name: str) -> None:
    assert 8 in verb_named(name).codes
