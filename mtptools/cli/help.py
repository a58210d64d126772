"""A verb's --help as a manual page: summary, arguments, options by what they are about, examples, exit codes, docs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

import click

from mtptools.cli.help_pages import ARGUMENTS, CODES, DOCS, GROUPS, PAGES, WRITING_CODES, Page

__all__ = ["Verb", "wrapped"]

WIDTH: Final = 100
LONG: Final = 12  # more options than these are shown in groups
_OTHERS: Final = "Options"


class Verb(click.Command):
    """A command that shows what `help_pages` knows of it besides its own options and examples."""

    @classmethod
    def of(cls, command: click.Command, name: str) -> Verb:
        """The command of a verb's module, as `name`."""
        return cls(
            name,
            callback=command.callback,
            params=command.params,
            help=command.help,
            epilog=command.epilog,
            no_args_is_help=command.no_args_is_help,
            context_settings={"max_content_width": WIDTH, **command.context_settings},
        )

    @property
    def page(self) -> Page:
        return PAGES.get(self.name or "", Page())

    @property
    def examples(self) -> list[str]:
        """The command lines of the epilog that `options.examples` made."""
        _, _, lines = (self.epilog or "").partition("\b\n")
        return [line.strip() for line in lines.splitlines() if line.strip()]

    @property
    def codes(self) -> dict[int, str]:
        """What it exits with, and what that means of this verb."""
        names = {param.name for param in self.params}
        writes = {"out", "force"} <= names  # of others -o is a text, and an earlier one goes
        numbers = (0, 2, 3, 7, 130, *(WRITING_CODES if writes else ()), *self.page.codes)
        return {code: self.page.codes.get(code, CODES[code]) for code in sorted(set(numbers))}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [
            (param.human_readable_name, self.page.arguments.get(param.name or "", ARGUMENTS.get(param.name or "", "")))
            for param in self.get_params(ctx)
            if isinstance(param, click.Argument)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        for heading, rows in self._groups(ctx):
            with formatter.section(heading):
                formatter.write_dl(rows)

    def _groups(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        """(heading, rows) of options, in the order of the tables; without headings where there are few."""
        rows = {
            "help" if "--help" in param.opts else param.name or "": record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)) is not None
        }
        placed: dict[str, str] = {}
        tables = [GROUPS.get(self.name or "", {}), GROUPS["*"]] if len(rows) > LONG else []
        for table in tables:
            for heading, names in table.items():
                placed |= {name: heading for name in names if name not in placed}
        headings = dict.fromkeys([_OTHERS, *(heading for table in tables for heading in table)])
        for heading in headings:
            found = [row for name, row in rows.items() if placed.get(name, _OTHERS) == heading]
            if found:
                yield heading, found

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    for line in wrapped(example, formatter.width - 4):
                        formatter.write(f"  {line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in self.codes.items()])
        with formatter.section("See also"):
            formatter.write_text(", ".join((*self.page.see, DOCS)))


def wrapped(line: str, width: int) -> list[str]:
    """A command line as lines of at most `width`, where its words allow it, that a shell reads as one."""
    out = [""]
    for part in _parts(line):
        if out[-1] and len(out[-1]) + len(part) + 3 > width:
            out[-1] += " \\"
            out.append("   ")
        out[-1] += f" {part}" if out[-1] else part
    return out


def _parts(line: str) -> list[str]:
    """Its words; an option with its value is one."""
    lexer = shlex.shlex(line, posix=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    out: list[str] = []
    for word in lexer:
        if out and out[-1].startswith("-") and " " not in out[-1] and not word.startswith("-"):
            out[-1] += f" {word}"
        else:
            out.append(word)
    return out
