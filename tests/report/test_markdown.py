"""The Markdown report, and the table of mtp-bench."""

from __future__ import annotations

import json
import re

from mtptools.report.escape import markdown_code, markdown_text
from mtptools.report.levels import percent
from mtptools.report.markdown import markdown_report
from mtptools.report.mtp_bench import PromptRow, aggregate, mtp_bench, prompt_rows, whole
from tests.report import made


def tables(text: str) -> list[list[list[str]]]:
    """Cells of every pipe table."""
    found: list[list[list[str]]] = []
    before = ""
    for line in text.split("\n"):
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append(re.split(r"(?<!\\)\|", line)[1:-1])
        before = line
    return found


def test_tables_hold() -> None:
    """Whatever names are, each row of a table has as many cells as its head, and no markup of theirs is left."""
    for data in (made.whole(), made.hostile(made.whole())):
        text = markdown_report(data)
        found = tables(text)
        assert len(found) >= 8
        for table in found:
            assert {len(row) for row in table} == {len(table[0])}
        text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
        outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
        assert "<script" not in outside.replace(r"\<", "")
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u200b\ud800-\udfff]", text)


def test_facts() -> None:
    data = made.whole()
    text = markdown_report(data)
    for row in data["decoder"]["acceptance"]:
        assert percent(row["rate"]) in text
    for margin in data["decoder"]["margins"]["quantiles"].values():
        assert f"{margin:.4g}" in text
    assert "- before: `Once upon⏎`" in text
    assert text.startswith("<!-- mtptools verify report -->\n## FAIL")


def test_escapes() -> None:
    assert markdown_text("a|b\n*c* <i> `d`") == r"a\|b \*c\* \<i\> \`d\`"
    assert markdown_code("`` ` ``") == "``` `` ` `` ```"
    assert markdown_code("a\nb") == "`a⏎b`"


def test_mtp_bench_lines() -> None:
    """Recorded in a thread about llama.cpp's MTP (PR 22673): a line, and one of a server that drafts nothing."""
    row = PromptRow("code_python", 192, 119, 118, 191 / 50.8)
    assert row.line() == "  code_python        pred= 192 draft= 119 acc= 118 rate=0.992 tok/s=50.8"
    assert PromptRow("creative_short", 36, 0, 0, 35 / 6.8).line().endswith("acc=   0 rate=n/a tok/s=6.8")
    record = json.loads(aggregate([row, PromptRow("b", 8, 1, 0, None)]))
    assert list(record) == [
        "n_requests",
        "total_predicted",
        "total_draft",
        "total_draft_accepted",
        "aggregate_accept_rate",
        "wall_s_total",
    ]
    assert (record["total_draft"], record["aggregate_accept_rate"], record["wall_s_total"]) == (120, 0.9833, None)


def test_mtp_bench_of_a_report() -> None:
    """Its sums are those of the report's acceptance."""
    decoder = made.verification()["decoder"]
    for acceptance in decoder["acceptance"]:
        found = prompt_rows(decoder, acceptance["k"])
        assert found is not None
        k, rows = found
        assert k == acceptance["k"]
        assert sum(row.drafted for row in rows) == sum(acceptance["drafted"])
        assert sum(row.accepted for row in rows) == sum(acceptance["accepted"])
        assert mtp_bench(rows).count("pred=") == decoder["prompts"]
    assert prompt_rows({**decoder, "per_prompt": []}) is None
    assert prompt_rows(decoder, 7) is None


def test_all_prompts_as_one() -> None:
    """Tokens after each prompt's first, by the seconds they took."""
    rows = [PromptRow("a", 11, 5, 4, 2.0), PromptRow("b", 21, 10, 2, 3.0)]
    assert whole(rows).cells() == ["32", "15", "6", "0.400", "6.0"]
    assert whole([*rows, PromptRow("c", 2, 1, 1, None)]).cells()[-1] == "n/a"
