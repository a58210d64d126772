"""What the tools write runs in llama.cpp with MTP on: the trunk's own greedy tokens, and our decoder's acceptance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.acceptance import total
from mtptools.decoder.load import load_model
from mtptools.decoder.speculate import decode_speculative
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.ops.extract import extract
from mtptools.ops.graft import graft
from mtptools.prompts import builtin_prompts
from mtptools.writer import write
from tests import rewrite
from tests.conftest import load_script

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

TOKENS, DRAFTS = 48, 3
POINTS = 0.05  # llama.cpp and our decoder round differently; their acceptance may part by this much


def llama(model: Path, prompts: list[list[int]], *, mtp: bool, draft: Path | None = None) -> list[dict[str, Any]]:
    """What llama.cpp makes of the prompts, in a process of its own: it aborts on files it cannot load."""
    found: list[dict[str, Any]] = load_script("run_llama").run(
        model, prompts, TOKENS, draft=(draft or model) if mtp else None, depth=DRAFTS
    )
    return found


def rate(found: list[dict[str, Any]]) -> float:
    return sum(one["draft_n_accepted"] for one in found) / max(1, sum(one["draft_n"] for one in found))


def prompts_of(path: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(open_checkpoint(path))
    return [tokenizer.encode(text) for text in builtin_prompts()[:3]]


def our_rate(path: Path, prompts: list[list[int]]) -> float:
    model = load_model(open_checkpoint(path))
    return total(DRAFTS, [decode_speculative(model, ids, TOKENS, DRAFTS).drafts for ids in prompts]).rate


def test_grafted_file_and_sidecar(
    family: str, full: Path, hf: Path, trunk_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """F32, where llama.cpp's own speculative decoding is exact enough to compare token by token."""
    trunk = trunk_of(family, "F32")
    bundled, sidecar = tmp_path / "out.gguf", tmp_path / "mtp.gguf"
    write(graft(open_checkpoint(trunk), open_checkpoint(hf), bundled.name, head_type="F32"), bundled)
    write(extract(open_checkpoint(bundled), sidecar.name), sidecar)
    prompts = prompts_of(full)
    plain = llama(trunk, prompts, mtp=False)
    same_file = llama(bundled, prompts, mtp=True)
    beside = llama(trunk, prompts, mtp=True, draft=sidecar)
    without = llama(bundled, prompts, mtp=False)
    assert all(len(one["tokens"]) == TOKENS for one in plain)
    for found in (same_file, beside, without):
        assert [one["tokens"] for one in found] == [one["tokens"] for one in plain]
    assert sum(one["draft_n"] for one in same_file) > TOKENS
    ours = our_rate(bundled, prompts)
    assert ours > 0.3
    assert abs(rate(same_file) - ours) <= POINTS
    assert abs(rate(beside) - ours) <= POINTS


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
def test_quantized_trunks_run(
    kind: str, family: str, full: Path, trunk_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """llama.cpp rounds activations of quantized matrices, so tokens may part at near-ties; acceptance must not."""
    out = tmp_path / "out.gguf"
    write(graft(open_checkpoint(trunk_of(family, kind)), open_checkpoint(full), out.name), out)
    prompts = prompts_of(full)
    found = llama(out, prompts, mtp=True)
    assert all(len(one["tokens"]) == TOKENS for one in found)
    assert rate(found) > 0.75 * our_rate(out, prompts)


def test_llama_cpp_sees_a_broken_head_too(family: str, full: Path, tmp_path: Path) -> None:
    """The oracle has power: with the halves of eh_proj swapped llama.cpp accepts far less."""
    import numpy as np

    source = open_checkpoint(full)
    name = next(name for name in source if name.endswith("nextn.eh_proj.weight"))
    half = source[name].shape[1] // 2
    broken = rewrite.gguf(full, tmp_path / "b.gguf", edit={name: lambda rows: np.roll(rows, half, axis=1)})
    prompts = prompts_of(full)
    good, bad = llama(full, prompts, mtp=True), llama(broken, prompts, mtp=True)
    assert rate(bad) < 0.5 * rate(good)


@pytest.mark.parametrize("family", ["qwen35"])
def test_declared_and_missing_is_found_late_by_llama_cpp(family: str, full: Path, tmp_path: Path) -> None:
    """A declared head that is missing: validate names it. This llama.cpp loads it, and aborts once MTP is on."""
    from mtptools.head import head_names
    from mtptools.ops.validate import validate

    broken = rewrite.gguf(full, tmp_path / "b.gguf", drop=head_names(open_checkpoint(full)))
    assert [f.check for f in validate(open_checkpoint(broken)).findings] == ["head-declared-missing"]
    assert len(llama(broken, [[1, 2, 3]], mtp=False)[0]["tokens"]) == TOKENS
    with pytest.raises(RuntimeError, match=r"llama\.cpp ended"):
        llama(broken, [[1, 2, 3]], mtp=True)
