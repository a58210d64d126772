"""verify: wiring overruled and probed, and what happens where the decoder has no formulas."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from fixtures import permutation, releases
from tests.cli.conftest import Run
from tests.conftest import FIXTURES


def wirings(text: str) -> list[dict[str, Any]]:
    """The probe's rows, each with its mean length."""
    rows = json.loads(text)["decoder"]["probe"]
    return [{**row["wiring"], "stated": row["stated"], "mean": row["acceptance"]["mean_length"]} for row in rows]


@pytest.mark.parametrize("kind", ["glm4moe", "deepseekv3"])
def test_probe_finds_the_wiring(run: Run, kind: str, tmp_path: Path) -> None:
    """A head that reads the hidden half alone: right after both norms, and nowhere else."""
    permutation.build(kind, tmp_path, reads="hidden")
    code, text, _ = run(
        "verify", tmp_path, "--parity", "--probe", "--k", "3", "--tokens", "12", "--limit", "2", "--json"
    )  # fmt: skip
    rows = wirings(text)
    assert code == 0
    assert len(rows) == 8
    assert {(row["tap"], row["recycle"]) for row in rows if row["mean"] > 3} == {("post", "post")}
    assert [row["mean"] for row in rows] == sorted((row["mean"] for row in rows), reverse=True)
    assert rows[0]["stated"]


def test_probe_of_a_deep_head_tries_its_turns(run: Run, tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path, reads="hidden", depth=3)
    _, text, _ = run("verify", tmp_path, "--parity", "--probe", "--k", "3", "--tokens", "8", "--limit", "1", "--json")
    assert {row["recurrence"] for row in wirings(text)} == {"cycle", "exact", "first"}


def test_probe_names_runtimes(run: Run) -> None:
    _, text, _ = run(
        "verify", FIXTURES / "qwen35" / "hf", "--parity", "--probe", "--k", "1", "--tokens", "6", "--limit", "1"
    )  # fmt: skip
    line = next(line for line in text.splitlines() if line.startswith("| post * | post | kept | cycle"))
    assert "vLLM, SGLang, llama.cpp, mlx-vlm" in line


@pytest.mark.parametrize("flags", [["--tap", "pre"], ["--recycle", "pre"]])
def test_a_wiring_overruled_costs_acceptance(run: Run, flags: list[str], tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path, reads="hidden")
    brief = ["--k", "2", "--tokens", "16", "--limit", "2", "--json"]
    rates = []
    for extra in ([], flags):
        _, text, _ = run("verify", tmp_path, "--parity", *brief, *extra)
        data = json.loads(text)["decoder"]
        assert data["parity"]["equal"]
        rates.append(data["acceptance"][0]["rate"])
    assert rates[0] > 0.95
    assert rates[1] < 0.6


def test_generate_takes_wiring(run: Run, tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path, reads="hidden")
    texts, lengths = set(), []
    for extra in ([], ["--tap", "pre", "--recycle", "pre", "--mask-first", "--recurrence", "first"]):
        code, text, _ = run("generate", tmp_path, "-p", "the people", "--k", "3", "--tokens", "12", "--json", *extra)
        assert code == 0
        texts.add(json.loads(text)["text"])
        lengths.append(json.loads(text)["acceptance"]["mean_length"])
    assert len(texts) == 1
    assert lengths[0] > 2 * lengths[1]


@pytest.mark.parametrize("flag", [["--tap", "pre"], ["--probe"], ["--recurrence", "exact"]])
def test_wiring_without_parity(run: Run, flag: list[str]) -> None:
    code, _, err = run("verify", FIXTURES / "qwen35" / "hf", *flag)
    assert code == 2
    assert "--parity" in err


def test_a_family_without_formulas_is_never_a_pass(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """L0 and L1 run and pass; what was asked for was not checked, and the exit code says so."""
    folder = FIXTURES / "qwen35" / "hf"
    monkeypatch.setattr("mtptools.decoder.FAMILIES", ("another",))
    code, text, _ = run("verify", folder, "--parity")
    assert code == 8, text
    assert "L1 static      pass" in text
    assert "NOT CHECKED  L0, L1; L2 to L4 were not run: the decoder does not know" in text
    assert "PASS" not in text
    code, text, _ = run("verify", folder, "--parity", "--json")
    data = json.loads(text)
    assert (code, data["ok"], data["failures"], data["decoder"]) == (8, False, [], None)
    assert data["not_run"].startswith("L2 to L4: the decoder does not know")


def test_a_failure_goes_before_what_was_not_run(run: Run, tmp_path: Path) -> None:
    """A release's names and sizes with nothing but zeros in them: L1 sees a dead head."""
    folder = releases.write_folder("ernie-4.5-21b-a3b", tmp_path / "ernie")
    code, text, _ = run("verify", folder, "--parity")
    assert code == 1, text
    assert "FAIL" in text


def test_other_verbs_refuse_it(run: Run, tmp_path: Path) -> None:
    folder = releases.write_folder("ernie-4.5-21b-a3b", tmp_path / "ernie")
    for verb in (["generate", folder, "-p", "x"], ["bench", folder]):
        code, _, err = run(*verb)
        assert code == 8
        assert "the decoder does not know" in err


def test_a_fault_that_helps_fails_whatever_the_acceptance(run: Run) -> None:
    """15 % is above the floor for a dead head, and 91 % would be had with the tap the head was made for."""
    code, text, _ = run(
        "verify", FIXTURES / "qwen35" / "hf", "--parity", "--tap", "pre", "--min-acceptance", "0", "--k", "2",
        "--tokens", "24", "--limit", "2",
    )  # fmt: skip
    assert code == 1, text
    assert "L4 controls: with the trunk state taken on the other side of the final norm" in text


def test_a_run_without_power_says_so(run: Run) -> None:
    code, text, _ = run(
        "verify", FIXTURES / "qwen35" / "hf", "--parity", "--k", "1", "--tokens", "4", "--limit", "1",
        "--min-acceptance", "0",
    )  # fmt: skip
    assert code == 0
    assert "L4 has no power to see" in text.splitlines()[-1]


def test_probe_says_what_to_type(run: Run, tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path, reads="hidden")
    brief = ["--k", "2", "--tokens", "12", "--limit", "1", "--probe"]
    _, text, _ = run("verify", tmp_path, "--parity", *brief, "--tap", "pre", "--recycle", "pre")
    assert "better than the wiring in use: --tap post --recycle post" in text
    _, text, _ = run("verify", tmp_path, "--parity", *brief)
    assert "keep it" in text


def test_static_findings_survive_a_file_that_cannot_be_decoded(run: Run, tmp_path: Path) -> None:
    permutation.build("qwen35", tmp_path / "whole")
    folder = drop(tmp_path / "whole", tmp_path / "less", "mtp.fc.weight")
    code, text, _ = run("verify", folder, "--parity")
    assert code == 1
    assert "[tensor-missing]" in text
    assert "L2 to L4 were not run" in text


def drop(source: Path, out: Path, name: str) -> Path:
    """A copy without one tensor."""
    shutil.copytree(source, out)
    tensors = load_file(source / "model.safetensors")
    del tensors[name]
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_a_donor_of_another_family(run: Run, tmp_path: Path) -> None:
    permutation.build("glm4moe", tmp_path)
    code, _, err = run("verify", FIXTURES / "qwen35" / "hf", "--parity", "--against", tmp_path)
    assert code == 4
    assert "family: qwen35, donor glm4moe" in err


@pytest.mark.parametrize(
    "flags",
    [
        ["--device", "meta"],
        ["--device", "mps"],
        ["--prompts", "nowhere.txt"],
        ["--baseline", "nowhere.json"],
        ["--seed", "5"],
    ],
    ids=" ".join,
)
def test_what_is_refused_before_anything_is_decoded(run: Run, flags: list[str]) -> None:
    code, _, err = run("verify", FIXTURES / "qwen35" / "hf", "--parity", *flags)
    assert code in (2, 3)
    assert "hint:" in err


@pytest.mark.parametrize("flags", [["--tap", "pre"], ["--recurrence", "exact"], ["--draft", "argmax"]], ids=" ".join)
def test_generate_without_drafts_takes_no_head_options(run: Run, flags: list[str]) -> None:
    code, _, err = run("generate", FIXTURES / "qwen35" / "hf", "-p", "x", *flags)
    assert code == 2
    assert "--k 3" in err
