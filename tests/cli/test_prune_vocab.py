"""prune-vocab from the command line: what is covered, measured, written, refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the decoder: pip install '.[decoder]'")

import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.ops.diff import diff
from mtptools.vocab.stored import draft_vocabulary
from tests.conftest import FIXTURES

MODEL = FIXTURES / "qwen35/gguf/model-BF16.gguf"
FOLDER = FIXTURES / "qwen35/hf"
VOCAB = 2048
BRIEF = ("--tokens", "12", "--limit", "2")


@pytest.fixture
def prose(tmp_path: Path) -> Path:
    """What the fixture was trained to continue, some of it twice over: a corpus has more than one document."""
    prompts = json.loads((FIXTURES / "qwen35/prompts.json").read_text(encoding="utf-8"))["prompts"]
    path = tmp_path / "prose.jsonl"
    texts = [prompt["text"] for prompt in prompts] * 12
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    for module in ("json/decoder", "textwrap", "heapq"):
        source = Path(json.__file__).parents[1] / f"{module}.py"
        shutil.copy(source, folder / source.name)
    return folder


def test_says_what_a_vocabulary_covers_without_writing(run: Any, prose: Path, code: Path, tmp_path: Path) -> None:
    asked = ("prune-vocab", MODEL, "--corpus", prose, "--corpus", f"code={code}", "--size", "1k")
    rc, shown, err = run(*asked, "--plot", tmp_path / "c.svg")
    assert rc == 0, err
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("| ") and "%" in line] == [
        "prose",
        "code",
        "overall",
        "worst",
    ]
    assert (tmp_path / "c.svg").read_bytes().startswith(b"<?xml")
    rc, shown, _ = run(*asked, "--json")
    data = json.loads(shown)
    assert data["draft_vocabulary"]["size"] == 1024
    assert data["output"] is None
    counts = {one["domain"]: one for one in data["origin"]["domains"]}
    assert counts["code"]["bytes"] == sum(path.stat().st_size for path in code.iterdir())
    by_size = {one["size"]: one["worst"]["held"] for one in data["coverage"]["sizes"]}
    assert by_size[256 * 2] < by_size[1024] < by_size[1536] < 1
    assert not list(tmp_path.glob("*.gguf"))


def test_writes_a_sidecar_that_verify_and_restore_take(run: Any, prose: Path, tmp_path: Path) -> None:
    out = tmp_path / "head.gguf"
    rc, shown, err = run("prune-vocab", MODEL, "-o", out, "--sidecar", "--corpus", prose, "--size", "1k")
    assert rc == 0, shown + err
    assert "RELEASED llama.cpp REFUSES THIS FILE" in err
    assert "--own-output" in err
    vocabulary = draft_vocabulary(open_checkpoint(out))
    assert vocabulary is not None
    assert len(vocabulary) == 1024
    receipt = json.loads(out.with_name("head.gguf.receipt.json").read_text())
    assert any("REFUSES" in fact for fact in receipt["facts"])
    rc, shown, err = run("verify", MODEL, "--head", out, "--parity", "--k", "4", *BRIEF)
    assert rc == 0, shown + err
    rc, shown, err = run("prune-vocab", out, "-o", tmp_path / "whole.gguf", "--restore", MODEL)
    assert rc == 0, err
    assert run("extract", MODEL, "-o", tmp_path / "x.gguf")[0] == 0
    assert diff(open_checkpoint(tmp_path / "whole.gguf"), open_checkpoint(tmp_path / "x.gguf")).equal


def test_a_head_of_its_own_is_judged_by_verify_too(run: Any, tmp_path: Path) -> None:
    """L0 and L1 are the head's as well as the trunk's; a tokenizer of the same size is not the same."""
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(list(range(0, VOCAB, 2))))
    out = tmp_path / "head"
    assert run("prune-vocab", FOLDER, "-o", out, "--ids", ids)[0] == 0
    asked = ("verify", FOLDER, "--head", out, "--parity", "--k", "1", "--limit", "1", "--tokens", "8")
    _, shown, _ = run(*asked)
    assert "receipt of the head" in shown
    assert "head: config" not in shown
    rc, _, err = run("verify", out, "--parity")
    assert rc == 3
    assert "--head" in err
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"draft_vocab_size": 511}))
    rc, shown, _ = run(*asked)
    assert rc == 1
    assert "head: config.json says" in shown
    (out / "config.json").write_text(json.dumps(config))
    tokens = (out / "tokenizer.json").read_text()
    (out / "tokenizer.json").write_text(tokens.replace('"the"', '"eht"', 1))
    rc, _, err = run(*asked)
    assert rc == 4
    assert "tokenizer" in err


def test_acceptance_decides(run: Any, prose: Path, tmp_path: Path) -> None:
    """A vocabulary of tokens that the text does not use costs nearly all acceptance; all tokens but one, nothing."""
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(list(range(1400, VOCAB))))
    out = tmp_path / "out.gguf"
    rc, shown, err = run("prune-vocab", MODEL, "-o", out, "--ids", bad, "--as-given", "--max-loss", "2", *BRIEF)
    assert rc == 1, shown + err
    assert "nothing is written" in err
    assert not out.exists()
    rc, shown, err = run("prune-vocab", MODEL, "-o", out, "--ids", bad, "--as-given", "--measure", *BRIEF, "--json")
    data = json.loads(shown)
    assert rc == 0, err
    assert data["trial"]["all"]["loss"] > 10
    assert out.exists()
    rc, shown, err = run(
        *("prune-vocab", MODEL, "-o", out, "--corpus", prose, "--size", str(VOCAB - 1), "--max-loss", "2"),
        *(*BRIEF, "--json", "--force"),
    )
    assert rc == 0, shown + err
    assert json.loads(shown)["trial"]["failed"] == []


def test_the_model_writes_the_corpus(run: Any, tmp_path: Path) -> None:
    prompts = json.loads((FIXTURES / "qwen35/prompts.json").read_text(encoding="utf-8"))["prompts"]
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(prompt["text"].splitlines()[0] for prompt in prompts), encoding="utf-8")
    rc, shown, err = run(
        "prune-vocab", MODEL, "--from-model", path, "--size", "1k", "--tokens", "12", "--measure", "--json"
    )
    assert rc == 0, err
    data = json.loads(shown)
    (domain,) = data["origin"]["domains"]
    assert domain["tokens"] == 12 * domain["documents"]
    assert data["trial"]["all"]["prompts"] == max(1, domain["documents"] // 5)


def test_every_domain_that_counts_is_judged(run: Any, prose: Path, code: Path, tmp_path: Path) -> None:
    """Text and the model's own; a domain of weight 0 is measured and not judged."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The first\nThe second\nA third\nFour\nFive\nSix\n")
    asked = ("prune-vocab", MODEL, "--corpus", prose, "--from-model", prompts, "--size", "600", "--tokens", "8")
    for weights, judged in ((("--weight", "code=0"), False), ((), True)):
        _, shown, err = run(*asked, "--corpus", f"code={code}", *weights, "--max-loss", "0", "--json")
        trial = json.loads(shown)["trial"]
        assert list(trial["domains"]) == ["model", "prose", "code"], err
        assert trial["domains"]["code"]["loss"] > 0
        assert ("code" in trial["failed"]) == judged


def test_a_token_without_a_row_is_not_kept(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(FOLDER / name, folder / name)
    more = {"added_tokens_decoder": {str(VOCAB + 5): {"content": "<|beyond|>", "special": True}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(more))
    (tmp_path / "ids.json").write_text("[1, 2, 3]")
    out = tmp_path / "out.txt"
    rc, _, err = run("prune-vocab", folder, "-o", out, "--map-only", "--ids", tmp_path / "ids.json")
    assert rc == 0, err
    assert max(map(int, out.read_text().split())) < VOCAB


def test_what_is_read_is_never_replaced(run: Any, code: Path, tmp_path: Path) -> None:
    model = shutil.copytree(FOLDER, tmp_path / "model")
    before = {path: path.read_bytes() for folder in (model, code) for path in folder.iterdir()}
    asked = ("prune-vocab", model, "--map-only", "--corpus", code, "--size", "600", "--force", "--to", "json")
    for name in ("config.json", "tokenizer.json"):
        assert run(*asked, "-o", model / name)[0] == 2
    assert run(*asked, "-o", code / "heapq.py")[0] == 2
    assert all(path.read_bytes() == data for path, data in before.items())
    for _ in range(2):  # a list of an earlier run is no input
        assert run(*asked, "-o", model / "hot.json")[0] == 0


def test_lists_in_every_format_and_back(run: Any, tmp_path: Path) -> None:
    given = tmp_path / "given.txt"
    ids = sorted(np.random.default_rng(0).choice(VOCAB, 500, replace=False).tolist())
    given.write_text("\n".join(map(str, ids)))
    for form, name in (
        ("ids", "a.txt"),
        ("json", "b.json"),
        ("npy", "c.npy"),
        ("sglang", "d.pt"),
        ("eagle3", "e.safetensors"),
    ):
        out = tmp_path / name
        asked = ("prune-vocab", FOLDER, "-o", out, "--map-only", "--ids", given, "--as-given")
        rc, shown, err = run(*asked, "--to", form)
        assert rc == 0, err
        assert "loaded by" in shown
        back = tmp_path / f"back-{form}.json"
        rc, _, err = run("prune-vocab", FOLDER, "-o", back, "--map-only", "--ids", out, "--as-given")
        assert rc == 0, err
        assert json.loads(back.read_text())["ids"] == ids
        assert json.loads(out.with_name(f"{name}.receipt.json").read_text())["tokenizer_sha256"]
    assert list(torch.load(tmp_path / "d.pt", weights_only=True)) == ids
    rc, shown, _ = run("prune-vocab", MODEL, "-o", tmp_path / "p.gguf", "--sidecar", "--ids", given)
    assert rc == 0
    pruned = draft_vocabulary(open_checkpoint(tmp_path / "p.gguf"))
    assert pruned is not None
    assert set(ids) < set(pruned.ids.tolist())  # what is always kept came to it
    rc, shown, _ = run("prune-vocab", tmp_path / "p.gguf", "-o", tmp_path / "own.json", "--map-only")
    assert rc == 0
    assert json.loads((tmp_path / "own.json").read_text())["ids"] == pruned.ids.tolist()


def test_a_list_of_another_tokenizer_is_refused(run: Any, tmp_path: Path) -> None:
    out = tmp_path / "ids.txt"
    given = tmp_path / "given.json"
    given.write_text("[1, 2, 3]")
    rc, _, err = run("prune-vocab", FIXTURES / "glm4moe/hf", "-o", out, "--map-only", "--ids", given, "--as-given")
    assert rc == 0, err
    rc, _, err = run("prune-vocab", MODEL, "-o", tmp_path / "x.gguf", "--ids", out)
    assert rc == 3
    assert "another tokenizer" in err


def test_a_folder_without_weights_is_enough_for_a_list(run: Any, prose: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(FOLDER / name, bare / name)
    rc, _, err = run("prune-vocab", bare, "-o", tmp_path / "i.txt", "--map-only", "--corpus", prose, "--size", "1k")
    assert rc == 0, err
    assert len((tmp_path / "i.txt").read_text().split()) == 1024
    rc, _, err = run("prune-vocab", bare, "-o", tmp_path / "o", "--corpus", prose, "--size", "1k")
    assert rc == 3


@pytest.mark.usefixtures("few_prompts")
def test_a_sidecar_is_measured_on_the_trunk_that_is_named(run: Any, prose: Path, tmp_path: Path) -> None:
    side, out = tmp_path / "side.gguf", tmp_path / "out.gguf"
    assert run("extract", MODEL, "-o", side)[0] == 0
    asked = ("prune-vocab", side, "-o", out, "--corpus", prose, "--size", str(VOCAB - 1), "--max-loss", "5", *BRIEF)
    rc, _, err = run(*asked)
    assert rc == 3
    assert "--trunk" in err
    rc, shown, err = run(*asked, "--trunk", FIXTURES / "qwen35/gguf/trunk-Q8_0.gguf", "--verify")
    assert rc == 0, shown + err
    assert "PASS  L0 to L4" in shown


CORPUS = ("--corpus", "{prose}")
REFUSED = {
    "nothing said": ((), 2, "nothing says which tokens to keep"),
    "size alone": (("--size", "1k"), 2, "nothing says which tokens to keep"),
    "too large": (("--size", "4k", *CORPUS), 2, "the vocabulary has 2,048"),
    "too small": (("--size", "10", *CORPUS), 2, "kept whatever"),
    "no number": (("--size", "lots", *CORPUS), 2, "no number of tokens"),
    "no corpus": (("--corpus", "{tmp}/none.txt"), 3, "none.txt"),
    "empty": (("--corpus", "{tmp}/empty.txt"), 3, "empty"),
    "binary": (("--corpus", "{tmp}/binary.txt"), 3, "binary.txt"),
    "utf-16": (("--corpus", "{tmp}/utf16.txt"), 3, "UTF-16"),
    "latin-1": (("--corpus", "{tmp}/latin1.txt"), 3, "UTF-8"),
    "ids out of range": (("--ids", "{tmp}/wild.json"), 3, "out of range"),
    "ids twice": (("--ids", "{tmp}/twice.json"), 3, "more than once"),
    "ids that are none": (("--ids", "{tmp}/empty.txt"), 3, "empty.txt"),
    "size of a list": (("--ids", "{tmp}/some.json", "--size", "1k"), 2, "a list is taken whole"),
    "a weight of nothing": (("--weight", "zh=2", *CORPUS), 2, "zh"),
    "no weight": (("--weight", "prose", *CORPUS), 2, "NAME=W"),
    "a plot of a list": (("--ids", "{tmp}/some.json", "--plot", "{tmp}/x.svg"), 2, "--corpus"),
    "a plot of another kind": (("--plot", "{tmp}/x.bmp", *CORPUS), 2, "x.bmp"),
    "prompts without measuring": (("--prompts", "{prose}", *CORPUS), 2, "--measure"),
    "no tokenizer there": (("--tokenizer", "{tmp}", *CORPUS), 3, "--tokenizer"),
    "ids-as of nothing": (("--ids-as", "offsets", *CORPUS), 2, "--ids"),
    "to without map-only": (("--to", "ids", *CORPUS), 2, "--map-only"),
    "restore with a size": (("--restore", "{tmp}/x.gguf", "--size", "1k"), 2, "--restore takes no"),
    "a list of a sidecar": (("--map-only", "--sidecar", *CORPUS), 2, "no checkpoint"),
    "a device for nothing": (("--device", "cuda", *CORPUS), 2, "for measuring"),
    "a tokenizer of another model": (
        ("--tokenizer", str(FIXTURES / "qwen3next/hf"), *CORPUS),
        3,
        "not the model's own",
    ),
    "a link to itself": (("--corpus", "{tmp}/loop"), 3, "loop"),
    "an empty size": (("--size", "", *CORPUS), 2, "no number of tokens"),
    "two weights": (("--weight", "prose=1", "--weight", "prose=2", *CORPUS), 2, "two weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_says_what_and_what_next(run: Any, prose: Path, tmp_path: Path, case: str) -> None:
    (tmp_path / "empty.txt").write_bytes(b" \n")
    (tmp_path / "binary.txt").write_bytes(b"text\0text" * 100)
    (tmp_path / "utf16.txt").write_bytes("words and words".encode("utf-16"))
    (tmp_path / "latin1.txt").write_bytes("caf\u00e9 ".encode("latin-1") * 100)
    (tmp_path / "wild.json").write_text("[1, 2, 99999]")
    (tmp_path / "twice.json").write_text("[1, 2, 2]")
    (tmp_path / "some.json").write_text("[1, 2, 3]")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    before = sorted(tmp_path.iterdir())
    arguments, code, words = REFUSED[case]
    filled = [text.format(tmp=tmp_path, prose=prose) for text in arguments]
    rc, _, err = run("prune-vocab", MODEL, "-o", tmp_path / "out.gguf", *filled)
    assert rc == code, err
    assert words in err
    assert "hint:" in err
    assert sorted(tmp_path.iterdir()) == before
