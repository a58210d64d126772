"""Quantized heads run in llama.cpp with MTP on, and are accepted there as in our decoder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.containers.gguf import Metadata
from mtptools.decoder.acceptance import total
from mtptools.decoder.load import load_model
from mtptools.decoder.speculate import decode_speculative
from mtptools.decoder.tokenizer import load_tokenizer
from mtptools.gguf_blocks import block_of
from mtptools.head import find_trunk
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.head_types import mixture_of
from mtptools.ops.presets import preset_type
from mtptools.ops.quantize import quantize
from mtptools.ops.style import Style
from mtptools.plan import Entry, Input, OutFile, Plan
from mtptools.prompts import builtin_prompts
from mtptools.writer import write
from tests.conftest import load_script

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

TOKENS, DRAFTS = 48, 3


def llama(model: Path, prompts: list[list[int]], draft: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load_script("run_llama").run(model, prompts, TOKENS, draft=draft, depth=DRAFTS)
    assert all(len(one["tokens"]) == TOKENS for one in found)
    return found


def rate(found: list[dict[str, Any]]) -> float:
    return sum(one["draft_n_accepted"] for one in found) / sum(one["draft_n"] for one in found)


def our_rate(path: Path, prompts: list[list[int]], head: Path | None = None) -> float:
    model = load_model(open_checkpoint(path), head=None if head is None else open_checkpoint(head))
    return total(DRAFTS, [decode_speculative(model, ids, TOKENS, DRAFTS).drafts for ids in prompts]).rate


def prompts_of(path: Path) -> list[list[int]]:
    tokenizer = load_tokenizer(open_checkpoint(path))
    return [tokenizer.encode(text) for text in builtin_prompts()]


def q4_k_m(source: Checkpoint, out: Path) -> Path:
    """The trunk as a whole in llama-quantize's Q4_K_M, by our own rules and codecs: no other program makes it."""
    mixture = mixture_of(source, list(source), source.hparams.n_layers)

    def entries() -> Iterator[Entry]:
        kinds = {name: found.role.kind for _, _, found in find_trunk(source) if found for name in found.names}
        for name, tensor in source.items():
            codec = tensor.codec
            if name in ("token_embd.weight", "output.weight"):
                codec = "Q6_K" if name == "output.weight" or "output.weight" not in source else "Q4_K"
            elif kinds.get(name) == "matrix" and block_of(name) and len(tensor.shape) > 1 and "conv1d" not in name:
                codec = preset_type("Q4_K_M", name, len(tensor.shape), mixture)
            yield Entry(name, tensor, codec, "source", (name,))

    assert isinstance(source.metadata, Metadata)
    file = OutFile(out.name, "gguf", source.metadata, tuple(entries()))
    write(Plan("quantize", (Input("source", source),), (file,)), out)
    return out


@pytest.fixture
def trunk(full: Path, tmp_path: Path) -> Path:
    bare = tmp_path / "bare.gguf"
    write(strip(open_checkpoint(full), bare.name), bare)
    return q4_k_m(open_checkpoint(bare), tmp_path / "trunk-Q4_K_M.gguf")


@pytest.mark.parametrize(("family", "kind"), [("qwen35", "IQ4_XS"), ("qwen35moe", "Q4_K_M")])
def test_a_quantized_head_on_a_q4_k_m_trunk(kind: str, full: Path, hf: Path, trunk: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    write(graft(open_checkpoint(trunk), open_checkpoint(hf), out.name, head_type=kind), out)
    assert {"Q4_K", "Q6_K"} <= {tensor.codec for tensor in open_checkpoint(trunk).values()}
    # The same trunk with the head in BF16 is what it may cost against: llama.cpp's own text from this trunk.
    plain = tmp_path / "plain.gguf"
    write(graft(open_checkpoint(trunk), open_checkpoint(hf), plain.name, head_type="BF16"), plain)
    prompts = prompts_of(full)
    found, before = rate(llama(out, prompts, out)), rate(llama(plain, prompts, plain))
    assert before > 0.4
    assert found > 0.7 * before
    assert our_rate(out, prompts) > 0.7 * our_rate(plain, prompts)


def test_an_output_matrix_of_its_own(full: Path, tmp_path: Path) -> None:
    """In the trunk's file, and in a file of its own; a useless one shows that it is the one that is read."""
    source, prompts = open_checkpoint(full), prompts_of(full)[:4]
    one, bare, side = tmp_path / "one.gguf", tmp_path / "bare.gguf", tmp_path / "side.gguf"
    write(quantize(source, one.name, Style.asked("Q8_0", own_output="Q4_K")), one)
    write(strip(source, bare.name), bare)
    write(extract(source, "whole.gguf"), tmp_path / "whole.gguf")
    write(quantize(open_checkpoint(tmp_path / "whole.gguf"), side.name, Style.asked("Q8_0", own_output="Q4_K")), side)
    for model, draft, head in ((one, one, None), (bare, side, side)):
        ours = our_rate(model, prompts, head)
        assert ours > 0.3
        assert rate(llama(model, prompts, draft)) > 0.75 * ours


def test_which_output_matrix_is_read(full: Path, tmp_path: Path) -> None:
    """With the rows of the head's own matrix in another order nothing is accepted, in llama.cpp as in our decoder."""
    from tests import rewrite

    source, prompts = open_checkpoint(full), prompts_of(full)[:2]
    whole, bare = tmp_path / "whole.gguf", tmp_path / "bare.gguf"
    write(quantize(source, whole.name, Style.asked(own_output="Q8_0")), whole)
    write(strip(source, bare.name), bare)
    name = next(name for name in open_checkpoint(whole) if name.endswith("nextn.shared_head_head.weight"))
    bad = rewrite.gguf(whole, tmp_path / "bad.gguf", edit={name: lambda rows: rows[::-1]})
    assert rate(llama(bad, prompts, bad)) < 0.05
    assert our_rate(bad, prompts) < 0.05
    write(extract(open_checkpoint(bad), "side.gguf"), tmp_path / "side.gguf")
    assert rate(llama(bare, prompts, tmp_path / "side.gguf")) < 0.05
    assert our_rate(bare, prompts, tmp_path / "side.gguf") < 0.05
    if "output.weight" not in source:
        return  # a tied sidecar has its output matrix in the block
    write(extract(source, "own.gguf"), tmp_path / "own.gguf")
    worse = rewrite.gguf(
        tmp_path / "own.gguf", tmp_path / "worse.gguf", edit={"output.weight": lambda rows: rows[::-1]}
    )
    assert rate(llama(bare, prompts, worse)) < 0.05
    assert our_rate(bare, prompts, worse) < 0.05
