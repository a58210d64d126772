"""The verb: what it writes, what --verify finds, what it refuses. Bytes and types: tests/ops/test_quantize.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import ggml_library
from mtptools.head import head_names
from mtptools.importance import Entry, Importance, file_parts
from tests.cli.conftest import Run


def importance(path: Path, model: Path, weight: float = 1.0) -> Path:
    """Of the head's matrices: one column in 64 counts, the others `weight`."""
    ckpt, entries = open_checkpoint(model), {}
    for name in head_names(ckpt):
        shape = ckpt[name].shape
        if len(shape) < 2:
            continue
        count = shape[0] if len(shape) > 2 else 1
        sums = np.full((count, shape[-1]), weight, np.float32)
        sums[:, ::64] = 1
        entries[name] = Entry(sums, np.ones(count, np.int64))
    path.write_bytes(b"".join(file_parts(Importance(entries, ("made",), 1, 512))))
    return path


@pytest.mark.usefixtures("few_prompts")
@pytest.mark.parametrize("family", ["qwen35"])
def test_a_quantized_head_is_written_verified_and_on_record(run: Run, full: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    weights = importance(tmp_path / "i.gguf", full)
    code, text, _ = run(
        "quantize", full, "-o", out, "--head", "Q4_K_M", "--role", "nextn.eh_proj=Q8_0", "--own-output", "Q4_0",
        "--imatrix", weights, "--verify",
    )  # fmt: skip
    assert code == 0
    assert "PASS  L0 to L4" in text
    record = json.loads((tmp_path / "out.gguf.receipt.json").read_text())
    assert record["verb"] == "quantize"
    assert record["verification"]["ok"]
    rows = {row["name"].rpartition("nextn.")[2]: row for row in record["tensors"] if "nextn." in row["name"]}
    assert (rows["eh_proj.weight"]["type"], rows["shared_head_head.weight"]["type"]) == ("Q8_0", "Q4_0")
    assert run("verify", out, "--trunk", full, "--against", full)[0] == 0


@pytest.mark.usefixtures("few_prompts")
@pytest.mark.parametrize("family", ["qwen35"])  # the search for codes of one bit takes its time
def test_a_head_that_lost_its_acceptance_fails(run: Run, full: Path, tmp_path: Path) -> None:
    if ggml_library.available() is None:
        pytest.skip("no wheel with ggml is installed: pip install xllamacpp")
    weights = importance(tmp_path / "i.gguf", full, 1e-12)
    code, text, _ = run(
        "quantize", full, "-o", tmp_path / "o.gguf", "--role", "nextn.eh_proj=IQ1_S", "--imatrix", weights, "--verify"
    )
    assert code == 1
    assert "L2 parity      pass" in text
    assert "L3 acceptance: k=1: " in text
    assert json.loads((tmp_path / "o.gguf.receipt.json").read_text())["verification"]["ok"] is False


def test_dry_run_writes_nothing(run: Run, full: Path, tmp_path: Path) -> None:
    code, text, _ = run("quantize", full, "-o", tmp_path / "o.gguf", "--head", "Q4_K", "--dry-run")
    assert code == 0
    assert "BF16 -> Q4_K" in text
    assert not list(tmp_path.iterdir())


def test_json(run: Run, full: Path, tmp_path: Path) -> None:
    code, text, _ = run("quantize", full, "-o", tmp_path / "o.gguf", "--head", "q5_k_s", "--json")
    assert code == 0
    head = [tensor for file in json.loads(text)["plan"]["files"] for tensor in file["tensors"] if tensor["head"]]
    assert {tensor["type"] for tensor in head} == {"F32", "Q5_K"}


def test_a_sidecar_is_quantized_and_used(run: Run, full: Path, tmp_path: Path) -> None:
    side, small, bare = tmp_path / "side.gguf", tmp_path / "small.gguf", tmp_path / "bare.gguf"
    assert run("extract", full, "-o", side)[0] == 0
    assert run("strip", full, "-o", bare)[0] == 0
    assert run("quantize", side, "-o", small, "--head", "Q6_K", "--own-output", "Q4_K", "--verify")[0] == 0
    assert small.stat().st_size < side.stat().st_size
    code, text, _ = run("verify", bare, "--head", small, "--parity", "--limit", 2, "--tokens", 24)
    assert code == 0, text


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        ((), 2, "nothing to quantize to"),
        (("--head", "Q9_X"), 2, "no type is called 'Q9_X'"),
        (("--head", "Q4_K", "--role", "eh_proj"), 2, "is not ROLE=TYPE"),
        (("--head", "Q4_K", "--role", "eh_proj=Q8_0"), 2, "no matrix 'eh_proj'"),
        (("--head", "IQ1_S"), 5, "without importance is noise"),
        (("--head", "TQ1_0"), 5, "no encoder for TQ1_0"),
        (("--head", "fp8-block128"), 5, "is no type of GGUF"),
        (("--own-output", "IQ2_XS"), 5, "without importance is noise"),
        (("--head", "Q8_0", "--norm-type", "F16"), 2, "GGUF holds norms in F32"),
        (("--head", "Q8_0", "--imatrix", "{model}"), 3, "imatrix"),
        (("--head", "Q8_0", "--imatrix", "{folder}/nothing"), 3, "nothing"),
    ],
)
def test_what_is_refused(run: Run, full: Path, tmp_path: Path, options: tuple[str, ...], code: int, what: str) -> None:
    given = [option.format(model=full, folder=tmp_path) for option in options]
    got, _, err = run("quantize", full, "-o", tmp_path / "o.gguf", *given)
    assert (got, what in err) == (code, True), err
    assert "hint: " in err
    assert not list(tmp_path.iterdir())


def test_no_head(run: Run, trunk_q8: Path, tmp_path: Path) -> None:
    code, _, err = run("quantize", trunk_q8, "-o", tmp_path / "o.gguf", "--head", "Q8_0")
    assert code == 3
    assert "no MTP head" in err


def test_the_output_is_the_source(run: Run, full: Path) -> None:
    code, _, err = run("quantize", full, "-o", full, "--head", "Q8_0", "--force")
    assert code == 2
    assert "hint" in err


def test_the_output_is_the_importance_matrix(run: Run, full: Path, tmp_path: Path) -> None:
    weights = importance(tmp_path / "i.gguf", full)
    before = weights.read_bytes()
    code, _, err = run("quantize", full, "-o", weights, "--head", "Q4_K", "--imatrix", weights, "--force")
    assert (code, "is the importance matrix" in err) == (2, True)
    assert weights.read_bytes() == before
