"""What released llama.cpp says to a reduced head: the messages that docs and receipts speak of, word for word.

The files are made by gguf-py alone. A day on which one of these tests fails is the day on which the docs change.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.ops.extract import extract
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.vocab import reduced

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

N, SIZE, HIDDEN = 512, 2048, 256
IDS = np.sort(np.random.default_rng(0).choice(SIZE, N, replace=False)).astype(np.int64)
TOKENS = 8
VERBOSE = 3


def load(model: Path, draft: Path | None = None) -> tuple[list[int] | None, str]:
    """(greedy tokens, or None when the file is refused; everything llama.cpp printed)."""
    request = {"model": str(model), "prompts": [[1, 2, 3]], "tokens": TOKENS, "depth": 3}
    request["draft"] = str(draft) if draft is not None else None
    code = (
        "import json, runpy, sys\n"
        f"serve = runpy.run_path({str(FIXTURES / 'run_llama.py')!r})['serve']\n"
        f"serve.__globals__['QUIET'] = {VERBOSE}\n"
        f"print('\\nTOKENS', json.dumps(serve({request!r})[0]['tokens']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, errors="replace", check=False)
    said = " ".join((done.stdout + done.stderr).split())  # numbers are padded
    tokens = [line.removeprefix("TOKENS ") for line in done.stdout.splitlines() if line.startswith("TOKENS ")]
    return (json.loads(tokens[0]) if tokens else None), said


@pytest.fixture
def sidecar(full: Path, tmp_path: Path) -> Path:
    out = tmp_path / "whole.gguf"
    write(extract(open_checkpoint(full), out.name), out)
    return out


def wrong_shape(name: str) -> str:
    expected = f"{HIDDEN}, {SIZE}, got {HIDDEN}, {N}, 1, 1"
    what = f"check_tensor_dims: tensor '{name}' has wrong shape; expected {expected}"
    return f"llama_model_load: error loading model: {what}"


def own(full: Path) -> str:
    return f"blk.{open_checkpoint(full).hparams.n_layers}.nextn.shared_head_head.weight"


def test_whole_heads_load(full: Path, sidecar: Path, tmp_path: Path) -> None:
    """The control: the same files from the same hand, not reduced."""
    whole = np.arange(SIZE)
    copies = [
        reduced.gguf(full, tmp_path / "a.gguf"),
        reduced.gguf(full, tmp_path / "b.gguf", cut={own(full): ("output.weight", whole)}),
    ]
    draft = reduced.gguf(sidecar, tmp_path / "c.gguf", cut={"output.weight": ("output.weight", whole)})
    for found, said in (load(copies[0], copies[0]), load(copies[1], copies[1]), load(full, draft)):
        assert found is not None, said[-2000:]
        assert len(found) == TOKENS


def test_bundled(full: Path, tmp_path: Path) -> None:
    """Not even its trunk loads: the shape is asked before anybody drafts."""
    path = reduced.gguf(full, tmp_path / "r.gguf", cut={own(full): ("output.weight", IDS)}, put={"d2t": IDS})
    for draft in (None, path):
        found, said = load(path, draft)
        assert found is None
        assert wrong_shape(own(full)) in said


def test_sidecar(full: Path, sidecar: Path, tmp_path: Path) -> None:
    path = reduced.gguf(sidecar, tmp_path / "r.gguf", cut={"output.weight": ("output.weight", IDS)}, put={"d2t": IDS})
    found, said = load(full, path)
    assert found is None
    assert wrong_shape("output.weight") in said


@pytest.mark.parametrize("place", ["bundled", "sidecar"])
def test_d2t_alone(place: str, full: Path, sidecar: Path, tmp_path: Path) -> None:
    """A tensor too many is enough: a map beside whole matrices does not load either."""
    source = full if place == "bundled" else sidecar
    path = reduced.gguf(source, tmp_path / "r.gguf", put={"d2t": IDS})
    found, said = load(path) if place == "bundled" else load(full, path)
    count = len(open_checkpoint(source))
    assert found is None
    what = f"done_getting_tensors: wrong number of tensors; expected {count + 1}, got {count}"
    assert f"llama_model_load: error loading model: {what}" in said


def test_by_gguf_py(full: Path, tmp_path: Path) -> None:
    """What our own verb writes, read by gguf-py: types, shapes, ids."""
    from gguf import GGMLQuantizationType, GGUFReader

    from mtptools.ops.prune_vocab import prune_vocab
    from mtptools.vocab.maps import Absolute, DraftVocabulary

    made = DraftVocabulary.of(Absolute(IDS), SIZE)
    whole = {tensor.name: tensor for tensor in GGUFReader(full).tensors}
    rows = whole.get("output.weight", whole["token_embd.weight"]).data[IDS]
    for alone, name in ((False, own(full)), (True, "output.weight")):
        out = tmp_path / f"{alone}.gguf"
        write(prune_vocab(open_checkpoint(full), made, out.name, sidecar=alone), out)
        there = {tensor.name: tensor for tensor in GGUFReader(out).tensors}
        assert there["d2t"].tensor_type == GGMLQuantizationType.I64
        assert there["d2t"].data.tolist() == IDS.tolist()
        assert there[name].shape.tolist() == [HIDDEN, N]
        assert np.array_equal(there[name].data, rows)
