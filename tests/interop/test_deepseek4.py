"""DeepSeek-V4 in llama.cpp: the decoder's greedy tokens, and drafts from a head in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from tests.conftest import load_script

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install '.[llama]'")
torch = pytest.importorskip("torch", reason="needs the decoder: pip install '.[decoder]'")
pytestmark = pytest.mark.interop

from mtptools.decoder.load import load_model  # noqa: E402
from mtptools.decoder.speculate import decode_plain  # noqa: E402
from tests.decoder import toy_v4 as toy  # noqa: E402

TEXT = torch.randint(2, toy.VOCAB, (300,), generator=torch.Generator().manual_seed(3)).tolist()
LENGTHS = (5, 40, 121, 300)  # 121 tokens and 24 more: over the end of a window of 128
TOKENS = 24


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_greedy(tmp_path: Path) -> None:
    """Random weights, float32 throughout: no token differs, and none of them was close."""
    trunk = toy.write_gguf(tmp_path / "trunk.gguf", toy.weights())
    prompts = [TEXT[:n] for n in LENGTHS]
    theirs = load_script("run_llama").run(trunk, prompts, TOKENS, float32=True)
    model = load_model(open_checkpoint(trunk))
    for prompt, answer in zip(prompts, theirs, strict=True):
        ours = decode_plain(model, prompt, TOKENS)
        same = next((i for i, (a, b) in enumerate(zip(ours.tokens, answer["tokens"], strict=True)) if a != b), TOKENS)
        assert same == TOKENS or ours.margins[same] < 1e-3, f"token {same} after {len(prompt)}: {ours.margins[same]}"
        assert same >= TOKENS // 2


def test_head_drafts(tmp_path: Path) -> None:
    """A head that knows the text: llama.cpp takes its drafts, and none when its two projections are swapped."""
    arrays = toy.weights(cycle=True)
    trunk = toy.write_gguf(tmp_path / "trunk.gguf", arrays)
    head = toy.write_gguf(tmp_path / "head.gguf", arrays, head=True)
    expected = decode_plain(load_model(open_checkpoint(trunk)), TEXT[:121], TOKENS).tokens

    def accepted(draft: Path, depth: int) -> float:
        answer = load_script("run_llama").run(trunk, [TEXT[:121]], TOKENS, draft, depth)[0]
        assert answer["tokens"] == expected
        assert answer["draft_n"] > 5
        return float(answer["draft_n_accepted"] / answer["draft_n"])

    assert accepted(head, 1) >= 0.8
    assert accepted(head, 3) >= 0.8
    swapped = arrays | {f"mtp.0.{a}_proj.weight": arrays[f"mtp.0.{b}_proj.weight"] for a, b in ("eh", "he")}
    assert accepted(toy.write_gguf(tmp_path / "swapped.gguf", swapped, head=True), 1) <= 0.2
