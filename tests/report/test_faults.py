"""Faults in plain words: the nearest to the cause goes first, and none is lost on the way to JUnit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mtptools.errors import CodecError, CorruptError, NotACheckpointError
from mtptools.ops.validate import CHECKS
from mtptools.report import faults as titles
from mtptools.report.cases import cases
from mtptools.report.faults import error_title, faults
from mtptools.report.gate import Checked, Gate, error_record
from mtptools.report.junit import junit
from tests.junit_rules import read

CONTROLS = [
    {"name": "swapped halves", "cure": "the halves of eh_proj swapped", "must_hurt": True, "verdict": "helps"},
    {"name": "other tap", "cure": "the trunk state taken on the other side", "must_hurt": True, "verdict": "no power"},
    {"name": "shifted token", "cure": "the embedding of the token before", "must_hurt": True, "verdict": "hurts"},
]


def verified(*failures: str, first: float = 0.5, **more: Any) -> dict[str, Any]:
    """As `verify --parity --json` has it, as far as it is read here."""
    arms = [{"compared": 8, "equal": not any(line.startswith("L2") for line in failures)}]
    rows = [
        {"k": k, "drafted": [8], "accepted": [4], "per_position": [first], "rate": first, "mean_length": 1 + first}
        for k in (1, 2)
    ]
    controls = [one | {"acceptance": 0.5, "base": first} for one in CONTROLS]
    decoder = {"parity": {"equal": arms[0]["equal"], "arms": arms}, "acceptance": rows, "k": [1, 2]}
    decoder |= {"controls": controls, "powerless": ["other tap"], "diagnosis": None}
    static = {"ok": True, "head": "", "findings": [], "passed": ["index"], "skipped": []}
    data = {"failures": list(failures), "not_run": None, "lineage": [], "static": static, "stream": None}
    return data | {"decoder": decoder, "baseline": None, "ok": not failures} | more


LOST = "L3 acceptance: k=2: 40.0% of drafts, the baseline has 80.0%, at least 85% of that is wanted"
DEAD = "L3 acceptance: 2.0% of first drafts (k=1), at least 10.0% is wanted"
SWAPPED = "L4 controls: with the halves of eh_proj swapped, acceptance of the first draft is 70%; as it stands it is 2%"
PARITY = "L2 parity: prompt 1, greedy, k=1 differs from token 3 on (other tokens)"
RUNTIME = "L5 runtime: nothing was drafted"
UNEXPLAINED = "diagnosis: acceptance of the first draft is 2%, and no control explains it"


@pytest.mark.parametrize(
    ("failures", "first", "expected"),
    [
        ((LOST,), 0.5, ["lost acceptance"]),
        ((DEAD,), 0.02, ["dead head"]),
        ((DEAD, UNEXPLAINED), 0.02, ["dead head", "dead head"]),
        ((DEAD, SWAPPED), 0.02, ["wrong order", "dead head"]),
        ((RUNTIME, LOST, PARITY), 0.5, ["speculative decoding differs", "lost acceptance", "the runtime disagrees"]),
        (("L9 news: something",), 0.5, ["L9 news"]),
        (("no level at all",), 0.5, ["no level at all"]),
    ],
)
def test_order(failures: tuple[str, ...], first: float, expected: list[str]) -> None:
    assert [fault.title for fault in faults(verified(*failures, first=first))] == expected


@pytest.mark.parametrize(
    ("against", "beside", "title", "fix"),
    [
        ("donor", (), "another head than the donor's", False),
        ("donor of the head", (), "another head than the donor's", False),
        ("receipt of the head", (), "not what its receipt says", False),
        ("tokenizer", (), "foreign tokenizer", True),
        ("tokenizer", ("trunk",), "foreign tokenizer", False),  # it was compared with the trunk's
    ],
)
def test_lineage(against: str, beside: tuple[str, ...], title: str, fix: bool) -> None:
    rows = [{"against": against, "verdict": "fail", "what": "w"}]
    rows += [{"against": one, "verdict": "pass", "what": ""} for one in beside]
    (fault,) = faults(verified("L0 lineage: w", lineage=rows))
    assert str(fault) == f"{title}: w"
    assert str(replace(fault, text=f"{title}: x")) == f"{title}: x", "nothing is said twice"
    assert (fault.title, "--trunk" in (fault.fix or "")) == (title, fix)


def test_a_cause_goes_before_what_it_does() -> None:
    """A head that was changed after the graft: the bytes differ, and the finding says why that matters."""
    finding = {"check": "head-norms", "severity": "error", "what": "6 of 7 norms", "evidence": "e", "fix": "f"}
    static = {"ok": False, "head": "", "findings": [finding], "passed": [], "skipped": []}
    lineage = [{"against": "donor", "verdict": "fail", "what": "not the donor's"}]
    data = verified("L0 lineage: not the donor's", "L1 static: [head-norms] 6 of 7 norms", DEAD, first=0.02)
    found = faults(data | {"static": static, "lineage": lineage})
    assert [fault.title for fault in found] == ["wrong norm", "dead head", "another head than the donor's"]
    assert found[0].fix == "f"
    tokenizer = [{"against": "tokenizer", "verdict": "fail", "what": "other tokens"}]
    assert faults(data | {"static": static, "lineage": tokenizer})[0].title == "foreign tokenizer"


def test_every_check_that_fails_has_a_title() -> None:
    assert {check.id for check in CHECKS if check.severity == "error"} == set(titles._STATIC)


@pytest.mark.parametrize("failures", [(LOST,), (DEAD, UNEXPLAINED), (SWAPPED,), (PARITY,), (RUNTIME,), ("L9 news: x",)])
def test_no_failure_is_lost(failures: tuple[str, ...]) -> None:
    """Whatever failed stands in a test case that failed; a suite of a failed artifact is never green."""
    data = verified(*failures, runtime={"name": "llama.cpp", "version": "b1"})
    failed = [case for case in cases(data) if case.status == "failed"]
    assert failed
    for line in failures:
        assert any(line.partition(": ")[2] in case.text for case in failed), line
    (suite,) = read(junit(Gate([Checked("x.gguf", 1, 1.0, data)])))
    assert suite.attrib["failures"] == str(len(failed))


def test_cases() -> None:
    """k by k; a fault that nobody could see is neither passed nor failed."""
    found = {(case.level[:2], case.name): case.status for case in cases(verified(LOST))}
    assert found == {
        ("L1", "index"): "passed",
        ("L2", "plain and speculative decoding"): "passed",
        ("L3", "k=1"): "passed",
        ("L3", "k=2"): "failed",
        ("L4", "swapped halves"): "passed",
        ("L4", "other tap"): "skipped",
        ("L4", "shifted token"): "passed",
    }


@pytest.mark.parametrize(
    ("error", "title"),
    [
        (CorruptError("tensor x ends at byte 9, the file has 5"), "truncated"),
        (CorruptError("header of 99 bytes in a file of 20"), "truncated"),
        (CorruptError("key at byte 40 needs 8 bytes, 3 are left"), "truncated"),
        (CorruptError("split.no is 3, its name says 1"), "damaged"),
        (NotACheckpointError("no such file or folder"), "not a checkpoint"),
        (CodecError("dtype X"), "unreadable values"),
    ],
)
def test_errors(error: Any, title: str) -> None:
    record = error_record(error)
    assert error_title(record["error"], record["what"]) == title
    checked = Checked("x", error.exit_code, 0.0, error=record)
    assert checked.line.startswith(f"{title}: ")
    assert Gate([checked]).line.startswith("ERROR  ")


@pytest.mark.parametrize(
    ("codes", "worst"), [((0, 8), 8), ((8, 1, 0), 1), ((1, 3), 3), ((7, 4, 1), 4), ((0, 0), 0), ((8, 5), 5)]
)
def test_worst(codes: tuple[int, ...], worst: int) -> None:
    """An error before a failure, a failure before what was not checked."""
    damaged = error_record(CorruptError("x"))
    checked = [
        Checked(str(n), code, 0.0, *((verified(), None) if code in (0, 1, 8) else (None, damaged)))
        for n, code in enumerate(codes)
    ]
    assert Gate(checked).exit_code == worst
