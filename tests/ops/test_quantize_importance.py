"""quantize with an importance matrix: what it weights, what it is refused for, what lineage says of the result."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import ggml_library
from mtptools.errors import CodecError, IncompatibleError
from mtptools.head import head_names
from mtptools.importance import Entry as Measured
from mtptools.importance import Importance, file_parts, read_importance
from mtptools.ops.extract import extract
from mtptools.ops.lineage import lineage
from mtptools.ops.quantize import quantize
from mtptools.ops.style import Style
from mtptools.writer import write
from tests import rewrite
from tests.conftest import FIXTURES
from tests.ops.test_quantize import OWN, made, made_up


def test_what_was_weighted_is_as_near_as_it_should_be(full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    out = made(quantize(source, "o.gguf", Style.asked("Q4_K"), importance=made_up(source)), tmp_path / "o.gguf")
    verdicts = {item.against: item for item in lineage(out, source, source)}
    assert verdicts["donor"].verdict == "not checked"
    assert "root mean square" in verdicts["donor"].what
    name = next(n for n in head_names(out) if n.endswith("attn_output.weight"))
    few = rewrite.gguf(
        out.path, tmp_path / "f.gguf", edit={name: lambda rows: np.where(np.arange(len(rows))[:, None] < 8, 0, rows)}
    )
    assert {i.against: i.verdict for i in lineage(open_checkpoint(few), source, source)}["donor"] == "fail"
    noisy = rewrite.gguf(
        out.path,
        tmp_path / "n.gguf",
        edit={name: lambda rows: rows + 0.3 * rows.std() * np.sin(np.arange(rows.size)).reshape(rows.shape)},
    )
    assert {i.against: i.verdict for i in lineage(open_checkpoint(noisy), source, source)}["donor"] == "fail"


def test_importance_of_another_model(full: Path) -> None:
    source = open_checkpoint(full)
    name = next(n for n in source if n.endswith("nextn.eh_proj.weight"))
    wrong = Importance({name: Measured(np.ones((1, 384), np.float32), np.ones(1, np.int64))})
    with pytest.raises(IncompatibleError, match="another model's") as caught:
        quantize(source, "o.gguf", Style.asked("Q4_K"), importance=wrong)
    assert "384" in str(caught.value)
    assert "512" in str(caught.value)


def test_a_type_that_demands_importance(full: Path) -> None:
    source = open_checkpoint(full)
    with pytest.raises(CodecError, match="IQ2_XS without importance is noise, and no --imatrix") as caught:
        quantize(source, "o.gguf", Style.asked("IQ2_XS"))
    assert "mtptools imatrix" in str(caught.value.hint)
    some = made_up(source).entries
    few = {name: entry for name, entry in some.items() if "attn_q.weight" not in name}
    with pytest.raises(CodecError, match="no entry for it") as caught:
        quantize(source, "o.gguf", Style.asked("IQ2_XS"), importance=Importance(few))
    assert str(caught.value.where).endswith("attn_q.weight")


def test_what_was_measured_of_a_fused_matrix_holds_for_its_parts(full: Path) -> None:
    source = open_checkpoint(full)
    entries = dict(made_up(source).entries)
    query = next(name for name in entries if name.endswith("attn_q.weight"))
    weights = entries[query]
    fused = {name: entry for name, entry in entries.items() if "attn_" not in name}
    fused[query.replace("attn_q", "attn_qkv")] = weights
    plan = quantize(source, "o.gguf", Style.asked("Q4_K"), importance=Importance(fused))
    used = {
        entry.name.rpartition("attn_")[2]: entry.importance
        for entry in plan.entries
        if "attn_" in entry.name and entry.head
    }
    for role in ("q.weight", "k.weight", "v.weight"):
        assert used[role] is not None
        assert np.array_equal(used[role], weights.mean)
    assert used["output.weight"] is None


def test_types_that_take_no_importance_are_not_called_weighted(full: Path) -> None:
    source = open_checkpoint(full)
    plan = quantize(source, "o.gguf", Style.asked("Q8_0"), importance=made_up(source))
    assert not any(entry.importance is not None for entry in plan.entries)


def test_the_receipt_names_the_importance_matrix(full: Path, tmp_path: Path) -> None:
    source = open_checkpoint(full)
    path = tmp_path / "head.imatrix.gguf"
    path.write_bytes(b"".join(file_parts(made_up(source))))
    plan = quantize(source, "o.gguf", Style.asked("Q4_K"), importance=read_importance(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert [(used.what, used.name, used.detail) for used in plan.used] == [
        ("importance matrix", "head.imatrix.gguf", f"sha256 {digest}")
    ]
    written = write(plan, tmp_path / "o.gguf").receipt
    assert written["used"][0]["detail"] == f"sha256 {digest}"
    assert any(row.get("weighted") for row in written["tensors"])


def test_importance_of_a_trunk_alone(full: Path) -> None:
    """What llama-imatrix makes of a bundled file: it never runs the head."""
    source = open_checkpoint(full)
    entries = {name.replace("blk.", "blk.9"): entry for name, entry in made_up(source).entries.items()}
    with pytest.raises(IncompatibleError, match="no entry for any matrix of this head") as caught:
        quantize(source, "o.gguf", Style.asked("Q4_K"), importance=Importance(entries))
    assert "--merge" in str(caught.value.hint)
    assert quantize(source, "o.gguf", Style.asked("Q8_0"), importance=Importance(entries))


def test_a_sidecars_output_in_a_type_that_demands_importance(tmp_path: Path) -> None:
    whole = open_checkpoint(FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf")
    side = made(extract(whole, "side.gguf"), tmp_path / "side.gguf")
    importance = Importance({f"blk.3.{OWN}": Measured(np.ones((1, 256), np.float32), np.ones(1, np.int64))})
    plan = quantize(side, "o.gguf", Style.asked(own_output="IQ2_XS"), importance=importance)
    assert {entry.name: entry.codec for entry in plan.entries}["output.weight"] == "IQ2_XS"


def test_a_sidecars_output_matrix_is_weighted_by_what_the_head_gives_it(tmp_path: Path) -> None:
    whole = open_checkpoint(FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf")
    side = made(extract(whole, "side.gguf"), tmp_path / "side.gguf")
    weights = Measured(np.linspace(1, 9, 256, dtype=np.float32)[None], np.ones(1, np.int64))
    importance = Importance({f"blk.3.{OWN}": weights})
    plan = quantize(side, "o.gguf", Style.asked(own_output="Q4_K"), importance=importance)
    (entry,) = (entry for entry in plan.entries if entry.name == "output.weight")
    assert entry.importance is not None
    assert np.array_equal(entry.importance, weights.mean)


def test_importance_by_which_nothing_matters(full: Path) -> None:
    source = open_checkpoint(full)
    entries = dict(made_up(source).entries)
    name = next(name for name in entries if name.endswith("attn_output.weight"))
    entries[name] = Measured(np.zeros_like(entries[name].sums), entries[name].counts)
    with pytest.raises(CodecError, match="no column matters") as caught:
        quantize(source, "o.gguf", Style.asked("Q4_K"), importance=Importance(entries))
    assert caught.value.where == name


@pytest.mark.parametrize("kind", ["Q4_K", "IQ2_XS"])
def test_two_experts_that_changed_places_are_found(kind: str, tmp_path: Path) -> None:
    if ggml_library.available() is None and kind == "IQ2_XS":
        pytest.skip("no wheel with ggml is installed: pip install xllamacpp")
    source = open_checkpoint(FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf")
    out = made(quantize(source, "o.gguf", Style.asked(kind), importance=made_up(source)), tmp_path / "o.gguf")
    assert {i.against: i.verdict for i in lineage(out, source, source)}["donor"] == "not checked"
    tensor = out["blk.3.ffn_up_exps.weight"]
    data, size = bytearray(out.path.read_bytes()), tensor.nbytes // 4
    at = tensor.blobs[0].offset
    data[at : at + 2 * size] = data[at + size : at + 2 * size] + data[at : at + size]
    (tmp_path / "swapped.gguf").write_bytes(data)
    swapped = open_checkpoint(tmp_path / "swapped.gguf")
    assert {i.against: i.verdict for i in lineage(swapped, source, source)}["donor"] == "fail"


def test_importance_that_overflows(full: Path) -> None:
    source = open_checkpoint(full)
    entries = {
        name: Measured(entry.sums * np.float32(1e33), entry.counts) for name, entry in made_up(source).entries.items()
    }
    with pytest.raises(CodecError, match="these overflow"):
        quantize(source, "o.gguf", Style.asked("Q4_K"), importance=Importance(entries))
