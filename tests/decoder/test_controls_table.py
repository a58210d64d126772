"""The table in docs/parity.md is what the fixtures give, and every control hurts on every one of them."""

from __future__ import annotations

import re

import pytest

from fixtures import controls

CELL = re.compile(r"(\*\*)?(\d+)%(?: of (\d+)%)?(\*\*)?|–")
SLACK = 12
"""Points a cell may be off: other machines sum in another order, and near-ties fall otherwise."""


def rows() -> dict[str, list[str]]:
    """Control -> cells, as the page has them."""
    text = controls.PAGE.read_text(encoding="utf-8").split(controls.MARKS[0])[1].split(controls.MARKS[1])[0]
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    assert tuple(lines[0][1:]) == controls.FIXTURES
    return {line[0]: line[1:] for line in lines[2:]}


@pytest.mark.parametrize("name", controls.FIXTURES)
def test_every_control_hurts_and_the_page_says_so(name: str) -> None:
    page = {control: cells[controls.FIXTURES.index(name)] for control, cells in rows().items()}
    results = controls.measured(name)
    assert {r.name for r in results} == {control for control, cell in page.items() if cell != "–"} - {"*as it is*"}
    for result in results:
        if result.must_hurt:
            assert result.verdict == "hurts", result
        match = CELL.fullmatch(page[result.name])
        assert match is not None, page[result.name]
        assert abs(int(match[2]) - 100 * result.acceptance) < SLACK, (result, page[result.name])
        if result.must_hurt:
            assert match[1], page[result.name]
