"""Pages of the documentation as what they tell people to type, and what they say it prints.

A recipe says in a comment at its head what the names in it stand for here:

    <!-- test
    trunk-Q4_K_M.gguf = fixtures/qwen35/gguf/trunk-Q4_K.gguf     a file or folder, copied under that name
    my-finetune = made by finetune                               a function of `setups.py`
    change --tokens 64 = --tokens 8                              other words in the commands, to save time
    only parsed = llama-server, vllm                             programs that are not run
    -->
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "recipes"
GUIDES = ("prune-the-vocabulary.md", "quantize-the-head.md")  # long, of measurements that take minutes
PAGES = tuple(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "fixtures/README.md")) + tuple(
    sorted((ROOT / "docs").rglob("*.md"))
)

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"\A<!-- test\n(.*?)-->", re.DOTALL)
_CODE = re.compile(r"# exit code (\d+)")


@dataclass
class Step:
    """One command: its words, what it exits with, lines it prints (`…` stands for anything)."""

    line: str
    code: int = 0
    shown: list[str] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


@dataclass(frozen=True)
class Recipe:
    """files  name -> where it comes from;  changes  text -> text in commands;  parsed  programs that are not run
    written  path -> text that the page tells people to write, Python or TOML, which begins with its path
    """

    files: dict[str, str]
    changes: dict[str, str]
    parsed: frozenset[str]
    steps: list[Step]
    written: dict[str, str]


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """(language, content) of each fenced block."""
    for found in _BLOCK.finditer(text):
        yield found[1], found[2]


def joined(block: str) -> list[str]:
    """Its lines, those that end in a backslash with the next."""
    return re.sub(r"\\\n\s*", "", block).splitlines()


def commands(text: str) -> list[str]:
    """Every line of a page's blocks that calls mtptools."""
    lines = [line.strip().removeprefix("$ ") for _, block in blocks(text) for line in joined(block)]
    return [line for line in lines if re.match(r"(python -m )?mtptools [a-z-]+( |$)", line)]


def arguments(line: str) -> list[str]:
    """What a command line gives to mtptools: up to a pipe or a redirection."""
    words = shlex.split(line, comments=True)
    words = words[words.index("mtptools") + 1 :]
    end = next((at for at, word in enumerate(words) if word in ("|", "&&", ";", ">", ">>", "2>")), len(words))
    # Dots after an option stand for its value, others for more of the same.
    return [word for at, word in enumerate(words[:end]) if word != "…" or words[at - 1].startswith("-")]


def recipe(path: Path) -> Recipe:
    text = path.read_text(encoding="utf-8")
    table = _TABLE.match(text)
    assert table is not None, f"{path.name} says nothing of what its names stand for"
    files, changes, parsed = {}, {}, ""
    for line in table[1].strip().splitlines():
        name, _, meaning = (part.strip() for part in line.partition(" ="))
        if name == "only parsed":
            parsed = meaning
        elif name.startswith("change "):
            changes[name.removeprefix("change ")] = meaning
        else:
            files[name] = meaning
    steps: list[Step] = []
    written = {}
    for language, block in blocks(text):
        if language == "console":
            steps += _steps(block)
        elif language in ("python", "toml"):
            first, _, rest = block.partition("\n")
            written[first.removeprefix("# ")] = rest
        else:
            assert not re.search(r"^\$? ?mtptools", block, re.MULTILINE), f"{path.name}: ```console, then it is run"
    return Recipe(files, changes, frozenset(name for name in parsed.split(", ") if name), steps, written)


def _steps(block: str) -> list[Step]:
    out: list[Step] = []
    for line in joined(block):
        if line.startswith("$ "):
            code = _CODE.search(line)
            out.append(Step(line[2:], int(code[1]) if code else 0))
        elif line.strip():
            out[-1].shown.append(line)
    return out


def prints(line: str) -> re.Pattern[str]:
    """What a shown line stands for: `…` for anything, blanks for blanks."""
    return re.compile(r"\s+".join(re.escape(word).replace("…", ".*") for word in line.split()) + r"\s*$")
