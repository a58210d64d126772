"""Whole checkpoints converted here run in llama.cpp with MTP on: the cycle's tokens, and drafts that are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.writer import write
from tests.conftest import load_script

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

TOKENS = 96
PROMPTS = [[5], [1000, 7, 412]]


def llama(model: Path, prompts: list[list[int]], *, mtp: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_script("run_llama").run(model, prompts, TOKENS, draft=model if mtp else None)
    return found


def rate(found: list[dict[str, Any]]) -> float:
    return sum(one["draft_n_accepted"] for one in found) / max(1, sum(one["draft_n"] for one in found))


@pytest.mark.parametrize("reads", ["embedding", "hidden"])
@pytest.mark.parametrize("kind", permutation.KINDS)
def test_permutation_models_run(kind: str, reads: str, tmp_path: Path) -> None:
    """F32: every token is the cycle's, with and without drafts. DeepSeek-V3's head comes from no other converter."""
    permutation.build(kind, tmp_path / "hf", reads=reads)
    out = tmp_path / "out.gguf"
    write(convert_gguf(open_checkpoint(tmp_path / "hf"), out.name, outtype="F32"), out)
    wanted = [permutation.expected(prompt, TOKENS) for prompt in PROMPTS]
    plain, drafted = (llama(out, PROMPTS, mtp=mtp) for mtp in (False, True))
    assert [one["tokens"] for one in plain] == wanted
    assert [one["tokens"] for one in drafted] == wanted
    assert rate(drafted) > 0.95


def test_trained_models_run_as_the_converters(hf: Path, full: Path, tmp_path: Path) -> None:
    """The same tokens and the same drafts as llama.cpp's own file of the same weights."""
    out = tmp_path / "out.gguf"
    write(convert_gguf(open_checkpoint(hf), out.name), out)
    ours, theirs = llama(out, PROMPTS, mtp=True), llama(full, PROMPTS, mtp=True)
    assert ours == theirs
    assert rate(ours) > 0.3
