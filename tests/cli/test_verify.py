"""verify --parity from the command line: grafts pass, heads broken on purpose fail on acceptance and are diagnosed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.head import head_names
from tests import rewrite
from tests.conftest import FIXTURES

BRIEF = ("--tokens", "24", "--limit", "3")
BRIEFLY = ("--k", "1", "--limit", "3")


@pytest.mark.parametrize(("family", "kind"), [("qwen35", "Q4_K"), ("qwen35moe", "BF16")])
def test_graft_and_verify(
    run: Any, kind: str, family: str, full: Path, trunk_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    assert run("graft", trunk_of(family, kind), full, "-o", out)[0] == 0
    code, text, err = run("verify", out, "--parity", "--against", full, *BRIEF)
    assert code == 0, text + err
    assert "PASS" in text
    assert "| k | prompts |" in text


@pytest.mark.parametrize("kind", ["Q2_K", "Q5_K", "Q6_K", "Q5_1", "IQ4_XS", "MXFP4"])
def test_any_trunk_type(run: Any, kind: str, trunk_of: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Whatever gguf-py decodes, the decoder runs: exactness does not depend on the type, acceptance may."""
    full = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
    out = tmp_path / "out.gguf"
    assert run("graft", trunk_of("qwen35", kind), full, "-o", out)[0] == 0
    code, text, _ = run(
        "verify", out, "--parity", "--k", "2", "--tokens", "12", "--limit", "1", "--min-acceptance", "0", "--json"
    )
    data = json.loads(text)
    assert data["decoder"]["parity"]["equal"]
    assert code == 0


def swap_halves(rows: np.ndarray) -> np.ndarray:
    return np.roll(rows, rows.shape[-1] // 2, axis=-1)


def broken(full: Path, out: Path, fault: str) -> Path:
    ckpt = open_checkpoint(full)
    names = head_names(ckpt)
    fusion = next(name for name in names if name.endswith("nextn.eh_proj.weight"))
    edits: dict[str, rewrite.Edit] = {
        "swapped halves": {fusion: swap_halves},
        "norms without +1": {name: lambda rows: rows - 1 for name in names if "norm" in name},
        "zeroed": {fusion: lambda rows: rows * 0},
    }[fault]
    return rewrite.gguf(full, out, edit=edits)


@pytest.mark.parametrize(
    ("family", "fault", "diagnosis"),
    [
        ("qwen35", "swapped halves", "with the halves of eh_proj swapped"),
        ("qwen35moe", "norms without +1", "with 1 added to every norm of the head"),
        ("qwen35", "zeroed", "no control explains it"),
    ],
)
def test_broken_heads(run: Any, fault: str, diagnosis: str, full: Path, tmp_path: Path) -> None:
    path = broken(full, tmp_path / "broken.gguf", fault)
    code, text, _ = run("verify", path, "--parity", "--against", full, "--tokens", "48", *BRIEFLY, "--json")
    data = json.loads(text)
    assert code == 1
    assert data["decoder"]["parity"]["equal"], "the trunk verifies every draft: the text cannot be wrong"
    assert any(line.startswith("L3 acceptance") for line in data["failures"])
    assert diagnosis in str(data["decoder"]["diagnosis"])


@pytest.mark.parametrize("family", ["qwen35moe"])
def test_every_control_hurts(run: Any, full: Path) -> None:
    code, text, _ = run("verify", full, "--parity", "--k", "1", "--json")
    data = json.loads(text)
    assert code == 0
    assert data["decoder"]["powerless"] == []
    assert len(data["decoder"]["controls"]) >= 5
    assert {c["verdict"] for c in data["decoder"]["controls"] if c["must_hurt"]} == {"hurts"}


@pytest.mark.parametrize("family", ["qwen35"])
def test_baseline_report(run: Any, full: Path, tmp_path: Path) -> None:
    code, text, _ = run("verify", full, "--parity", *BRIEF, "--json")
    assert code == 0
    report = tmp_path / "report.json"
    report.write_text(text)
    assert run("verify", full, "--parity", *BRIEF, "--baseline", report, "--min-acceptance", "100%", "-q")[0] == 0
    data = json.loads(text)
    for row in data["decoder"]["acceptance"]:
        row["accepted"] = row["drafted"]
    report.write_text(json.dumps(data))
    code, text, _ = run("verify", full, "--parity", *BRIEF, "--baseline", report, "--min-acceptance", "100%")
    assert code == 1
    assert "L3 acceptance" in text
    report.write_text("{}")
    code, _, err = run("verify", full, "--parity", *BRIEF, "--baseline", report)
    assert code == 3
    assert "--json > report.json" in err


def test_sidecar_and_serial(run: Any, full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    head = tmp_path / "head.gguf"
    assert run("extract", full, "-o", head, "-q")[0] == 0
    assert run("verify", trunk_q8, "--head", head, "--parity", "--serial", "--k", "2", *BRIEF)[0] == 0
    code, _, err = run("verify", trunk_q8, "--parity", *BRIEF)
    assert code == 3
    assert "hint:" in err


@pytest.mark.usefixtures("few_prompts")
@pytest.mark.parametrize("family", ["qwen35"])
def test_verify_option_of_graft(run: Any, full: Path, trunk_q8: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    code, text, err = run("graft", trunk_q8, full, "-o", out, "--verify")
    assert code == 0, text + err
    record = json.loads((tmp_path / "out.gguf.receipt.json").read_text())["verification"]
    assert record["ok"]
    assert record["decoder"]["parity"]["equal"]


def test_generate(run: Any, full: Path, hf: Path) -> None:
    plain = run("generate", full, "-p", "The whale", "--tokens", "24", "--ignore-eos")
    assert plain[0] == 0
    assert "tokens/s" in plain[2]
    drafted = run("generate", full, "-p", "The whale", "--tokens", "24", "--ignore-eos", "--k", "3")
    assert drafted[1] == plain[1]
    assert "accepted" in drafted[2]
    data = json.loads(run("generate", hf, "-p", "The whale", "--tokens", "24", "--ignore-eos", "--json")[1])
    assert plain[1] == data["text"] + "\n"
    sampled = ("--temperature", "0.9", "--top-k", "50", "--seed", "3", "--ignore-eos", "--tokens", "24")
    one = run("generate", full, "-p", "The whale", *sampled)[1]
    assert one == run("generate", full, "-p", "The whale", *sampled, "--k", "2")[1]
    assert one != plain[1]
    assert run("generate", full, "-p", "", "--tokens", "4")[0] == 2
    assert run("generate", full, "-p", "x", "--temperature", "-1")[0] == 2
    assert run("generate", full, "-p", "x", "--device", "nowhere")[0] == 2


def test_prompt_longer_than_the_context(run: Any, full: Path) -> None:
    code, _, err = run("generate", full, "-p", "word " * 6000, "--tokens", "4")
    assert code == 2
    assert "context of 4096" in err
