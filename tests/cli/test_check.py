"""check: a good artifact passes, eight bad ones fail as they should, each named in the first line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bad_artifacts import BAD, FULL
from tests.cli.conftest import Run
from tests.conftest import FIXTURES
from tests.junit_rules import read

TRUNK = FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf"
BRIEF = ("--k", "1", "--tokens", "12", "--limit", "2")
AGAINST = ("--against", FULL)

# What only a comparison can show, and what one has to be asked for.
BESIDE: dict[str, tuple[object, ...]] = {
    "foreign tokenizer": ("--trunk", FULL),
    "lost acceptance": (*AGAINST, "--min-acceptance", "85%"),
}
CODES = {"truncated": 3}
# A level of each that fails, and what its test case says.
LEVELS = {
    "declared but missing": ("L1", "head-declared-missing", "no head tensor in the file"),
    "dead head": ("L3", "k=1", "0.0% of first drafts"),
    "wrong norm": ("L1", "head-norms", "norms without the +1"),
    "wrong order": ("L4", "swapped halves", "with the halves of eh_proj swapped"),
    "foreign tokenizer": ("L0", "tokenizer", "the tokenizer is not that of model-BF16.gguf"),
    "wrong block_count": ("L1", "block-count", "block_count is 4, the highest block is 4"),
    "lost acceptance": ("L3", "k=1", "at least 85% of that is wanted"),
}


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may themselves run in a workflow."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)


def test_good(run: Run, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    files = ("--junit", tmp_path / "new" / "j.xml", "--report", tmp_path / "r.json", "--html", html)
    code, out, err = run("check", FULL, *AGAINST, *BRIEF, *files)
    assert code == 0, out + err
    assert out.startswith("PASS  L1, L2, L3, L4: 48 logits rows equal, bit for bit; ")
    assert "no answer from receipt; bytes are those of donor" in out
    (suite,) = read((tmp_path / "new" / "j.xml").read_text())
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("0", "0")
    classes = {case.attrib["classname"] for case in suite.findall("testcase")}
    assert classes == {"L0.lineage", "L1.static", "L2.parity", "L3.acceptance", "L4.controls"}
    data = json.loads((tmp_path / "r.json").read_text())
    assert (data["schema"], data["ok"], data["exit_code"]) == (1, True, 0)
    (one,) = data["artifacts"]
    assert (one["verdict"], one["faults"], one["error"]) == ("PASS", [], None)
    assert one["levels"] == {
        "L0": "not checked",  # the donor's bytes are; there is no receipt
        **dict.fromkeys(("L1", "L2", "L3", "L4"), "pass"),
        "L5": "not run",
    }
    assert one["verification"]["decoder"]["parity"]["equal"]
    assert "<html" in html.read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", BAD)
def test_bad(run: Run, fault: str, tmp_path: Path) -> None:
    path = BAD[fault](tmp_path / "bad.gguf")
    junit, report = tmp_path / "j.xml", tmp_path / "r.json"
    code, out, err = run("check", path, *BRIEF, *BESIDE.get(fault, ()), "--junit", junit, "--report", report)
    assert code == CODES.get(fault, 1), out + err
    first = out.splitlines()[0]
    assert first.startswith(("FAIL  " if code == 1 else "ERROR  ") + f"{fault}: "), first
    (one,) = json.loads(report.read_text())["artifacts"]
    assert one["line"] == first.partition("  ")[2]
    assert one["exit_code"] == code
    assert one["faults"][0]["title"] == fault
    (suite,) = read(junit.read_text())
    if code == 3:
        (case,) = suite.findall("testcase")
        error = case.find("error")
        assert error is not None
        assert error.attrib["type"] == "CorruptError"
        assert (one["verification"], one["error"]["error"]) == (None, "CorruptError")
        return
    level, name, says = LEVELS[fault]
    assert one["levels"][level] == "fail"
    failed = {case.attrib["name"]: case for case in suite.findall("testcase") if case.find("failure") is not None}
    told = failed[name].find("failure")
    assert told is not None
    assert says in str(told.text)
    assert failed[name].attrib["classname"].startswith(f"{level}.")


def test_several(run: Run, tmp_path: Path) -> None:
    """One verdict, the worst of all; what is good is still checked to its end."""
    missing = BAD["declared but missing"](tmp_path / "missing.gguf")
    cut = BAD["truncated"](tmp_path / "cut.gguf")
    code, out, _ = run("check", FULL, missing, "--static", "--junit", tmp_path / "j.xml")
    assert code == 1
    assert out.startswith("FAIL  1 of 2: missing.gguf: declared but missing: ")
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [["PASS", FULL.name], ["FAIL", "missing.gguf"]]
    assert [suite.attrib["failures"] for suite in read((tmp_path / "j.xml").read_text())] == ["0", "1"]
    code, out, _ = run("check", cut, missing, FULL, "--static", "--json")
    data = json.loads(out)
    assert code == data["exit_code"] == 3, "what cannot be read is worse than what fails"
    assert data["line"].startswith("ERROR  2 of 3: cut.gguf: truncated: ")
    assert [one["verdict"] for one in data["artifacts"]] == ["ERROR", "FAIL", "PASS"]
    code, out, _ = run("check", FULL, FULL, "--static")
    assert (code, out.splitlines()[0]) == (0, "PASS  2 of 2")


def test_static(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded, and that is said."""
    monkeypatch.setattr("mtptools.cli.verifying._decode", None)
    code, out, _ = run("check", FULL, "--static")
    assert code == 0
    assert out.startswith("PASS  L0 and L1 only: nothing was decoded")
    assert run("check", FULL, "--static", "-q") == (0, "", "")


def test_stream(run: Run) -> None:
    code, out, err = run("check", FULL, "--stream", "--positions", "100", "--limit", "2")
    assert code == 0, out + err
    assert out.startswith("PASS  L1, L3, L4: ")
    assert "L2 Parity         not run" in out


def test_a_family_without_decoder(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither a pass nor a failure: what was not checked is said, and a service that counts sees an error."""
    monkeypatch.setattr("mtptools.decoder.FAMILIES", ("another",))
    code, out, _ = run("check", FULL, "--junit", tmp_path / "j.xml")
    assert code == 8
    assert out.startswith("NOT CHECKED  L2 to L4: the decoder does not know ")
    (suite,) = read((tmp_path / "j.xml").read_text())
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("0", "3")
    code, out, _ = run("check", BAD["wrong block_count"](tmp_path / "bad.gguf"))
    assert code == 1, "a failure is one, whatever else was not checked"


def test_cut_off_anywhere(run: Run, tmp_path: Path) -> None:
    """In the header, in its strings, in the tensors: a download that broke off is called one."""
    data, path = FULL.read_bytes(), tmp_path / "cut.gguf"
    for size in (8, 30, 5000, 20000, 60000, 80000, len(data) - 1):
        path.write_bytes(data[:size])
        code, out, _ = run("check", path, "--static")
        assert code == 3
        assert out.startswith("ERROR  truncated: "), (size, out)


def test_which_file(run: Run, tmp_path: Path) -> None:
    """The artifact is there, what it is compared with is not: the first line says which."""
    code, out, _ = run("check", FULL, "--static", "--against", tmp_path / "none.gguf")
    assert code == 3
    assert out.startswith(f"ERROR  not a checkpoint: {tmp_path / 'none.gguf'}: no such file or folder")


def test_without_a_head(run: Run) -> None:
    code, out, _ = run("check", TRUNK)
    assert code == 3
    assert out.startswith("ERROR  no head: ")
    assert "hint: " in out


def test_a_sidecar(run: Run, tmp_path: Path) -> None:
    """Decoded on the trunk that is given; without one, the next thing to type is said."""
    head = tmp_path / "head.gguf"
    assert run("extract", FULL, "-o", head, "-q")[0] == 0
    code, out, _ = run("check", head)
    assert code == 3
    assert "--trunk TRUNK" in out
    code, out, err = run("check", head, "--trunk", TRUNK, *BRIEF)
    assert code == 0, out + err
    assert "bit for bit" in out.splitlines()[0]
    assert run("check", head, "--static", "-q")[0] == 0
    assert run("check", head, "--trunk", TRUNK, "--static", "-q")[0] == 0
    assert run("check", head, "--trunk", TRUNK, "--against", FULL, *BRIEF, "-q")[0] == 0, "the donor has this very head"


def test_too_large(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gate checks does not depend on the memory that is free today: --stream is named, not taken."""
    monkeypatch.setattr("mtptools.decoder.memory.free_memory", lambda device: 1 << 10)
    code, out, _ = run("check", FULL, *BRIEF)
    assert code == 7
    assert out.startswith("ERROR  could not be checked: the model does not fit")
    assert "--stream" in out


def test_another_model(run: Run) -> None:
    code, out, _ = run("check", FULL, "--stream", "--positions", "50", "--against", FIXTURES / "glm4moe" / "hf")
    assert code == 4
    assert out.startswith("ERROR  another model: ")


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        (("--static", "--k", "1"), "--k needs --parity"),
        (("--k", "0"), "not a list of draft lengths"),
        (("--tokens", "many"), "--tokens"),
        (("--min-acceptance", "95%"), "--against"),
        (("--baseline", "x.json", "--against", "y.gguf"), "two baselines"),
        (("--layers", "0:2"), "--layers"),
        (("--junit", "."), "--junit FILE"),
        (("--junit", str(FULL)), "no report stands there"),
        (("--report", str(FULL.parents[1] / "hf" / "config.json")), "no report stands there"),
        (("--config", "none.toml"), "none.toml"),
    ],
)
def test_usage(run: Run, rest: tuple[str, ...], says: str) -> None:
    """A mistake of the command line is none of the artifact: no verdict."""
    code, out, err = run("check", FULL, *rest)
    assert code == (3 if "none.toml" in rest else 2), out + err
    assert out == ""
    assert says in err
