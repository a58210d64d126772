"""Grafts of six families run in llama.cpp with their head on: the trunk's greedy tokens, nearly every draft accepted.

The models need no training: a permutation language model follows one long cycle over its vocabulary, and its head is
right by construction (`fixtures/permutation.py`). A swapped half, a norm without its 1 or a wrong k_b accepts nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.plan import Plan
from mtptools.writer import write
from tests.conftest import load_script

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install '.[llama]'")
pytestmark = pytest.mark.interop

PROMPT = [12, 40, 7]
TOKENS = 48
# Norms of these models carry random signs, so that each can be told from any other: the judgement of norms, made for
# trained ones, does not hold for them.
ALLOWED = ("head-norms",)


def made(plan: Plan, path: Path) -> Path:
    write(plan, path)
    return path


@pytest.fixture(scope="module", params=permutation.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def models(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """hf: the release; trunk: the same without its head as a GGUF, which declares none."""
    folder = tmp_path_factory.mktemp(kind)
    permutation.build(kind, folder / "hf", dtype="F32", reads="hidden")
    made(strip(open_checkpoint(folder / "hf"), "bare"), folder / "bare")
    made(convert_gguf(open_checkpoint(folder / "bare"), "trunk.gguf", outtype="F32"), folder / "trunk.gguf")
    return lambda name: folder / {"hf": "hf", "trunk": "trunk.gguf"}[name]


def run(model: Path, draft: Path | None, depth: int) -> tuple[list[int], float]:
    answer = load_script("run_llama").run(model, [PROMPT], TOKENS, draft, depth)[0]
    offered = answer["draft_n"]
    return answer["tokens"], answer["draft_n_accepted"] / offered if offered else 0.0


def test_graft_drafts(kind: str, models: Callable[[str], Path], tmp_path: Path) -> None:
    donor, trunk = open_checkpoint(models("hf")), open_checkpoint(models("trunk"))
    out = made(graft(trunk, donor, "out.gguf", head_type="F32", allow=ALLOWED), tmp_path / "out.gguf")
    expected = permutation.expected(PROMPT, TOKENS)
    assert run(models("trunk"), None, 0)[0] == expected
    assert run(out, None, 0)[0] == expected
    for depth in (1, 3):
        tokens, accepted = run(out, out, depth)
        assert tokens == expected
        assert accepted >= 0.95, f"{kind}: {accepted:.3f} at depth {depth}"


def test_sidecar_drafts(kind: str, models: Callable[[str], Path], tmp_path: Path) -> None:
    """The same head beside its trunk, as -md takes it."""
    donor, trunk = open_checkpoint(models("hf")), open_checkpoint(models("trunk"))
    whole = made(graft(trunk, donor, "w.gguf", head_type="F32", allow=ALLOWED), tmp_path / "w.gguf")
    sidecar = made(extract(open_checkpoint(whole), "s.gguf"), tmp_path / "s.gguf")
    tokens, accepted = run(models("trunk"), sidecar, 3)
    assert tokens == permutation.expected(PROMPT, TOKENS)
    assert accepted >= 0.95, f"{kind}: {accepted:.3f}"


def test_swapped_halves_are_seen(kind: str, models: Callable[[str], Path], tmp_path: Path) -> None:
    """The test above can fail: the columns of eh_proj the other way round."""
    import numpy as np

    from tests import rewrite

    donor, trunk = open_checkpoint(models("hf")), open_checkpoint(models("trunk"))
    whole = made(graft(trunk, donor, "w.gguf", head_type="F32", allow=ALLOWED), tmp_path / "w.gguf")
    name = f"blk.{trunk.hparams.n_layers}.nextn.eh_proj.weight"
    turn = {name: lambda rows: np.concatenate(np.split(rows, 2, axis=1)[::-1], axis=1)}
    swapped = rewrite.gguf(whole, tmp_path / "swapped.gguf", edit=turn)
    tokens, accepted = run(swapped, swapped, 3)
    assert tokens == permutation.expected(PROMPT, TOKENS)
    assert accepted <= 0.1
