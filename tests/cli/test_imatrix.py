"""imatrix from the command line: the file, the table, JSON, merging, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the decoder: pip install '.[decoder]'")

from mtptools.checkpoint import open_checkpoint
from mtptools.cli.imatrix import _fitted, _pieces
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.errors import IncompatibleError
from mtptools.importance import Entry, Importance, file_parts, read_importance
from tests.conftest import FIXTURES
from tests.decoder import toy_v4

MODEL = FIXTURES / "qwen35moe/gguf/model-BF16.gguf"
BRIEF = ("--context", "64", "--chunks", "2")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    prompts = json.loads((FIXTURES / "qwen35moe/prompts.json").read_text(encoding="utf-8"))["prompts"]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(prompt["text"] for prompt in prompts), encoding="utf-8")
    return path


def test_file_table_and_json(run: Any, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "head.gguf"
    code, shown, err = run("imatrix", MODEL, "--text", text, "-o", out, *BRIEF)
    assert code == 0, err
    found = read_importance(out)
    assert (found.datasets, found.chunks, found.chunk_size) == ((str(text),), 2, 64)
    assert len(found.entries) == 12
    assert all(name.startswith("blk.3.") for name in found.entries)
    assert "12 tensors, 12 of them measured on 2 chunks of 64 tokens" in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("blk.3"))
    unused = found.entries["blk.3.ffn_up_exps.weight"].unused
    assert row[1:6] == ["12", "126", str(unused), "of", "4"]
    code, shown, _ = run("imatrix", MODEL, "--text", text, "-o", out, *BRIEF, "--force", "--json")
    data = json.loads(shown)
    assert code == 0
    assert data["tensors"]["blk.3.attn_q.weight"]["rows"] == 126
    assert data["tensors"]["blk.3.ffn_up_exps.weight"]["shape"] == [4, 256]
    _, shown, _ = run("imatrix", MODEL, "--text", text, "-o", out, *BRIEF, "--force", "-v")
    assert "blk.3.nextn.eh_proj.weight" in shown
    assert run("imatrix", MODEL, "--text", text, "-o", out, *BRIEF, "--force", "-q")[:2] == (0, "")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_merges_a_trunks(run: Any, text: Path, tmp_path: Path) -> None:
    """The trunk's entries pass through; of the same name both are added."""
    first, both = tmp_path / "first.gguf", tmp_path / "both.gguf"
    assert run("imatrix", MODEL, "--text", text, "-o", first, *BRIEF, "--scope", "all")[0] == 0
    code, shown, err = run("imatrix", MODEL, "--text", text, "-o", both, *BRIEF, "--merge", first)
    assert code == 0, err
    one, whole = read_importance(first), read_importance(both)
    assert "12 of them measured" in shown
    assert whole.entries.keys() == one.entries.keys()
    assert whole.datasets == (str(text), str(text))
    for name, entry in one.entries.items():
        times = 2 if name.startswith("blk.3.") else 1
        assert np.array_equal(whole.entries[name].sums, entry.sums * times), name
        assert np.array_equal(whole.entries[name].counts, entry.counts * times), name


def test_a_trunks_groups_are_pooled(tmp_path: Path) -> None:
    """DeepSeek-V4: llama-imatrix writes a row a group, llama-quantize takes one for all of them."""
    ckpt = open_checkpoint(toy_v4.write_gguf(tmp_path / "v4.gguf", toy_v4.weights()))
    name = "blk.1.attn_output_a.weight"
    columns = ckpt[name].shape[-1]
    sums = np.arange(2 * columns, dtype=np.float32)[None]
    found = _fitted(Importance({name: Entry(sums, np.array([7]))}), ckpt)
    mean = found.importance_of(name, columns)
    assert mean is not None
    assert mean[0].tolist() == ((sums[0, :columns] + sums[0, columns:]) / np.float32(14)).tolist()
    with pytest.raises(IncompatibleError):
        _fitted(Importance({name: Entry(sums[:, 1:], np.array([7]))}), ckpt)


def test_two_texts_are_one(run: Any, text: Path, tmp_path: Path) -> None:
    """One after the other, chunks across the seam."""
    whole = text.read_text(encoding="utf-8")
    parts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    cut = whole.rindex("\n")
    parts[0].write_text(whole[:cut], encoding="utf-8")
    parts[1].write_text(whole[cut:], encoding="utf-8")
    ckpt = open_checkpoint(MODEL)
    tokenizer = load_tokenizer(ckpt)
    ids = tokenizer.encode(whole[:cut]) + tokenizer.encode(whole[cut:])
    found = _pieces(ckpt, parts, [part.read_text(encoding="utf-8") for part in parts], 32, None)
    assert len(found) == len(ids) // 32 > 5
    assert [token for piece in found for token in piece] == ids[: 32 * len(found)]
    code, _, err = run("imatrix", MODEL, "--text", parts[0], "--text", parts[1], "-o", tmp_path / "o.gguf", *BRIEF)
    assert code == 0, err
    assert read_importance(tmp_path / "o.gguf").datasets == tuple(map(str, parts))


def test_a_sidecar(run: Any, text: Path, tmp_path: Path) -> None:
    side, out = tmp_path / "side.gguf", tmp_path / "out.gguf"
    assert run("extract", MODEL, "-o", side)[0] == 0
    trunk = FIXTURES / "qwen35moe/gguf/trunk-Q8_0.gguf"
    code, _, err = run("imatrix", trunk, "--head", side, "--text", text, "-o", out, *BRIEF)
    assert code == 0, err
    assert len(read_importance(out).entries) == 12


def test_says_which_experts_were_not_reached(run: Any, tmp_path: Path) -> None:
    """A text of one word uses few experts; what that means is said."""
    text, out = tmp_path / "word.txt", tmp_path / "out.gguf"
    text.write_text("the " * 40, encoding="utf-8")
    code, shown, err = run("imatrix", FIXTURES / "deepseekv3/hf", "--text", text, "-o", out, "--context", "32")
    assert code == 0, err
    found = read_importance(out)
    unused = {block: found.entries[f"blk.{block}.ffn_up_exps.weight"].unused for block in (3, 4)}
    assert max(unused.values()) > 0
    assert "an expert without a row" in shown
    for block, count in unused.items():
        assert f"{count} of 8" in next(line for line in shown.splitlines() if line.startswith(f"blk.{block} "))


def test_refusals_before_any_work(run: Any, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    (tmp_path / "empty.txt").write_text(" \n", encoding="utf-8")
    (tmp_path / "short.txt").write_text("Few words.", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x01" * 100)
    (tmp_path / "zeros").write_bytes(b"abc\0def")
    (tmp_path / "taken.gguf").write_bytes(b"mine")
    wide = Importance(
        {"blk.0.attn_qkv.weight": Entry(np.ones((1, 128), dtype=np.float32), np.array([5]))}, ("x",), 1, 5
    )
    (tmp_path / "other.gguf").write_bytes(b"".join(file_parts(wide)))
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (2, "Missing option '-o'", (MODEL, "--text", text)),
        (2, "Missing option '--text'", (MODEL, "-o", out)),
        (3, "the text is empty", (MODEL, "--text", tmp_path / "empty.txt", "-o", out)),
        (3, "not UTF-8 text", (MODEL, "--text", tmp_path / "binary", "-o", out)),
        (3, "zero bytes", (MODEL, "--text", tmp_path / "zeros", "-o", out)),
        (3, "cannot read the text", (MODEL, "--text", tmp_path / "none.txt", "-o", out)),
        (3, "tokens long, one chunk takes 512", (MODEL, "--text", tmp_path / "short.txt", "-o", out)),
        (2, "context", (MODEL, "--text", text, "-o", out, "--context", "1000000")),
        (3, "no head", (FIXTURES / "qwen35moe/gguf/trunk-Q8_0.gguf", "--text", text, "-o", out, *BRIEF)),
        (6, "the output exists", (MODEL, "--text", text, "-o", tmp_path / "taken.gguf")),
        (7, "no such folder", (MODEL, "--text", text, "-o", tmp_path / "none" / "out.gguf")),
        (2, "something else stands there", (MODEL, "--text", text, "-o", tmp_path, "--force")),
        (2, "one of the inputs", (MODEL, "--text", text, "-o", text, "--force")),
        (3, "not an importance matrix", (MODEL, "--text", text, "-o", out, "--merge", text)),
        (
            4,
            "1 x 128 in the importance matrix, 1 x 256",
            (MODEL, "--text", text, "-o", out, "--merge", tmp_path / "other.gguf"),
        ),
    ]
    for code, what, arguments in cases:
        found, shown, err = run("imatrix", *arguments)
        assert (found, what in err) == (code, True), (arguments, found, err)
        assert not shown
        assert not out.exists()
    assert (tmp_path / "taken.gguf").read_bytes() == b"mine"


def test_a_family_without_decoder(run: Any, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(FIXTURES / "glm4moe/hf", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["model_type"] = "ernie4_5_moe"
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    code, _, err = run("imatrix", folder, "--text", text, "-o", tmp_path / "out.gguf")
    assert code == 8, err
    assert "does not know" in err


def test_stopped_halfway_leaves_nothing(run: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while the file is written: the earlier file stands, no temporary one does."""
    out = tmp_path / "out.gguf"
    assert run("imatrix", MODEL, "--text", text, "-o", out, *BRIEF)[0] == 0
    before = out.read_bytes()

    def parts(matrix: Importance) -> Any:
        yield next(iter(file_parts(matrix)))
        raise KeyboardInterrupt

    monkeypatch.setattr("mtptools.importance.file_parts", parts)
    code, _, err = run("imatrix", MODEL, "--text", text, "-o", out, *BRIEF, "--force")
    assert code == 130, err
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "text.txt"]
