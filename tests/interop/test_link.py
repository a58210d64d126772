"""A split GGUF grafted with --link: shards of the old set, with their old split.count, run in llama.cpp with MTP on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.ops.extract import strip
from mtptools.ops.graft import graft
from mtptools.writer import write
from tests.interop.test_llama_cpp import llama, our_rate, prompts_of, rate
from tests.ops.test_surgery import split_by_gguf_py

pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install 'mtptools[llama]'")
pytestmark = pytest.mark.interop

POINTS = 0.05  # as in test_llama_cpp


def test_linked_shards_run(
    family: str, full: Path, hf: Path, trunk_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    trunk = trunk_of(family, "F32")
    for name in ("in", "out", "back"):
        (tmp_path / name).mkdir()
    first = split_by_gguf_py(trunk, tmp_path / "in" / "base.gguf")
    plan = graft(open_checkpoint(first), open_checkpoint(hf), "o.gguf", head_type="F32", link=True)
    linked = [file.linked for file in plan.files]
    assert sum(path is not None for path in linked) == len(open_checkpoint(first).files) - 1 >= 2
    out = write(plan, tmp_path / "out" / "o.gguf").path
    counts = [file.metadata["split.count"] for file in open_checkpoint(out).files]
    assert counts == [len(plan.files), *[len(plan.files) - 1] * (len(plan.files) - 2), len(plan.files)]
    prompts = prompts_of(full)
    plain = [one["tokens"] for one in llama(trunk, prompts, mtp=False)]
    drafted = llama(out, prompts, mtp=True)
    assert [one["tokens"] for one in drafted] == plain
    assert abs(rate(drafted) - our_rate(out, prompts)) <= POINTS
    back = write(strip(open_checkpoint(out), "b.gguf", link=True), tmp_path / "back" / "b.gguf").path
    assert [one["tokens"] for one in llama(back, prompts, mtp=False)] == plain


def test_llama_cpp_reads_the_number_of_every_shard(
    full: Path, trunk_of: Callable[[str, str], Path], tmp_path: Path, family: str
) -> None:
    """Why a shard is linked at its own place only: another split.no is refused, another split.count is not."""
    (tmp_path / "in").mkdir()
    first = split_by_gguf_py(trunk_of(family, "F32"), tmp_path / "in" / "base.gguf")
    second = sorted(first.parent.iterdir())[1]
    good = second.read_bytes()
    key = good.index(b"split.no") + len(b"split.no") + 4
    assert good[key : key + 2] == b"\x01\x00"
    prompts = [[1, 2, 3]]
    second.write_bytes(good[:key] + b"\x02\x00" + good[key + 2 :])
    with pytest.raises(RuntimeError, match=r"llama\.cpp ended"):
        llama(first, prompts, mtp=False)
    key = good.index(b"split.count") + len(b"split.count") + 4
    second.write_bytes(good[:key] + b"\x63\x00" + good[key + 2 :])
    assert len(llama(first, prompts, mtp=False)[0]["tokens"]) > 0
