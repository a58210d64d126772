"""prune-vocab: rows and maps as other libraries read them, and the algebra of pruning, restoring and moving heads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.errors import ConventionError
from mtptools.head import find_trunk
from mtptools.ops.convert_gguf import convert_gguf
from mtptools.ops.diff import diff
from mtptools.ops.extract import extract, strip
from mtptools.ops.graft import graft
from mtptools.ops.lineage import lineage
from mtptools.ops.prune_vocab import prune_vocab
from mtptools.ops.quantize import quantize
from mtptools.ops.restore_vocab import restore_vocab
from mtptools.ops.style import Style
from mtptools.ops.validate import validate
from mtptools.plan import Plan
from mtptools.vocab.maps import Absolute, DraftVocabulary
from mtptools.vocab.stored import draft_vocabulary
from mtptools.writer import write
from tests.conftest import FIXTURES
from tests.ops.test_surgery import split_by_gguf_py

OWN = "nextn.shared_head_head.weight"
HF = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3")
GGUF = FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf"
UNTIED = FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf"


def made(plan: Plan, path: Path) -> Checkpoint:
    return open_checkpoint(write(plan, path).path)


def some(ckpt: Checkpoint, count: int, seed: int = 0) -> DraftVocabulary:
    size = ckpt.hparams.vocab_size
    ids = np.sort(np.random.default_rng(seed).choice(size, count, replace=False)).astype(np.int64)
    return DraftVocabulary.of(Absolute(ids), size)


def every_third(vocabulary: DraftVocabulary) -> DraftVocabulary:
    return DraftVocabulary.of(Absolute(vocabulary.ids[::3]), vocabulary.size)


def raw(path: Path, name: str) -> np.ndarray:
    return np.asarray(next(tensor for tensor in GGUFReader(path).tensors if tensor.name == name).data)


@pytest.mark.parametrize("model", [GGUF, UNTIED], ids=["tied", "untied"])
def test_gguf_py_reads_absolute_ids_and_the_rows_of_these_tokens(tmp_path: Path, model: Path) -> None:
    source = open_checkpoint(model)
    keep = some(source, 1000)
    beside = write(prune_vocab(source, keep, "b.gguf"), tmp_path / "b.gguf").path
    alone = write(prune_vocab(source, keep, "s.gguf", sidecar=True), tmp_path / "s.gguf").path
    shared = "token_embd.weight" if source.hparams.tie_embeddings else "output.weight"
    whole = raw(model, shared)
    for path, name in ((beside, f"blk.{source.hparams.n_layers}.{OWN}"), (alone, "output.weight")):
        d2t = raw(path, "d2t")
        assert d2t.dtype == np.int64
        assert d2t.tolist() == keep.ids.tolist()
        assert np.array_equal(raw(path, name), whole[keep.ids])
    assert np.array_equal(raw(beside, shared), whole)  # the trunk's is whole
    assert source.hparams.tie_embeddings == (model == GGUF)
    back = made(restore_vocab(open_checkpoint(alone), source, "r.gguf"), tmp_path / "r.gguf")
    assert ("output.weight" in back) == (model == UNTIED)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "Q6_K", "IQ4_XS", "F16"])
def test_rows_of_packed_types_are_the_bytes_they_were(tmp_path: Path, kind: str) -> None:
    source = made(quantize(open_checkpoint(GGUF), "q.gguf", Style.asked(own_output=kind)), tmp_path / "q.gguf")
    keep = some(source, 321)
    out = made(prune_vocab(source, keep, "b.gguf"), tmp_path / "b.gguf")
    name = f"blk.4.{OWN}"
    assert out[name].codec == kind
    assert np.array_equal(raw(out.path, name), raw(source.path, name)[keep.ids])


@pytest.mark.parametrize("family", HF)
def test_the_safetensors_library_reads_offsets_and_a_mask(tmp_path: Path, family: str) -> None:
    source = open_checkpoint(FIXTURES / family / "hf")
    keep = some(source, 300)
    out = made(prune_vocab(source, keep, "out"), tmp_path / "out")
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        offsets, mask = file.get_tensor("d2t"), file.get_tensor("t2d")
    assert (offsets + np.arange(300)).tolist() == keep.ids.tolist()
    assert np.flatnonzero(mask).tolist() == keep.ids.tolist()
    assert mask.dtype == np.bool_
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert 300 in (config["draft_vocab_size"], config.get("text_config", {}).get("draft_vocab_size"))
    assert config.get("tie_word_embeddings") is not True
    found = {role.name: one for role, layer, one in find_trunk(source) if layer is None and one is not None}
    whole = found.get("output.weight") or found["token_embd.weight"]
    reduced = next(one for role, layer, one in find_trunk(out) if role.name == "output.weight" and one is not None)
    assert np.array_equal(decode(reduced.tensor), decode(whole.tensor)[keep.ids])
    assert validate(out).ok


@pytest.mark.parametrize("sidecar", [False, True], ids=["with trunk", "sidecar"])
def test_pruning_twice_is_pruning_once_and_restoring_gives_the_file_back(tmp_path: Path, sidecar: bool) -> None:
    source = open_checkpoint(GGUF)
    keep = some(source, 900)
    once = made(prune_vocab(source, keep, "a.gguf", sidecar=sidecar), tmp_path / "a.gguf")
    twice = made(prune_vocab(once, every_third(keep), "b.gguf"), tmp_path / "b.gguf")
    at_once = made(prune_vocab(source, every_third(keep), "c.gguf", sidecar=sidecar), tmp_path / "c.gguf")
    assert diff(twice, at_once).equal
    assert draft_vocabulary(twice) == every_third(keep)
    whole = extract(source, "d.gguf") if sidecar else None
    before = source if whole is None else made(whole, tmp_path / "d.gguf")
    for pruned in (once, twice):
        plan = restore_vocab(pruned, source, "r.gguf")
        assert any("byte for byte" in fact for fact in plan.facts)
        (tmp_path / "r.gguf").unlink(missing_ok=True)
        (tmp_path / "r.gguf.receipt.json").unlink(missing_ok=True)
        assert diff(made(plan, tmp_path / "r.gguf"), before).equal


@pytest.mark.parametrize("family", HF)
def test_a_folder_pruned_twice_and_restored(tmp_path: Path, family: str) -> None:
    source = open_checkpoint(FIXTURES / family / "hf")
    keep = some(source, 300)
    once = made(prune_vocab(source, keep, "a"), tmp_path / "a")
    twice = made(prune_vocab(once, every_third(keep), "b"), tmp_path / "b")
    assert diff(twice, made(prune_vocab(source, every_third(keep), "c"), tmp_path / "c")).equal
    restored = made(restore_vocab(twice, source, "r"), tmp_path / "r")
    assert diff(restored, made(extract(source, "x"), tmp_path / "x")).equal
    assert diff(made(extract(once, "e"), tmp_path / "e"), once).equal
    assert all(row.verdict == "pass" for row in lineage(once, None, source))


def test_heads_move_with_their_draft_vocabulary(tmp_path: Path) -> None:
    source, trunk = open_checkpoint(GGUF), open_checkpoint(FIXTURES / "qwen35" / "gguf" / "trunk-Q8_0.gguf")
    keep = some(source, 700)
    beside = made(prune_vocab(source, keep, "b.gguf"), tmp_path / "b.gguf")
    alone = made(prune_vocab(source, keep, "s.gguf", sidecar=True), tmp_path / "s.gguf")
    folder = made(prune_vocab(open_checkpoint(FIXTURES / "qwen35" / "hf"), keep, "f"), tmp_path / "f")
    assert diff(made(extract(beside, "e.gguf"), tmp_path / "e.gguf"), alone).equal
    stripped = [made(strip(one, f"{n}.gguf"), tmp_path / f"{n}.gguf") for n, one in enumerate((beside, source))]
    assert diff(*stripped).equal
    grafts = [made(graft(trunk, one, f"g{n}.gguf"), tmp_path / f"g{n}.gguf") for n, one in enumerate((beside, alone))]
    assert diff(*grafts).equal
    for out in (*grafts, made(graft(trunk, folder, "gh.gguf", head_type="BF16"), tmp_path / "gh.gguf")):
        assert draft_vocabulary(out) == keep
        assert validate(out).ok, validate(out).findings
    rows = lineage(grafts[1], trunk, alone)
    assert [row.verdict for row in rows] == ["pass"] * 3, rows


def test_a_wrong_row_or_a_wrong_id_fails_lineage(tmp_path: Path) -> None:
    source = open_checkpoint(GGUF)
    keep = some(source, 700)
    out = made(prune_vocab(source, keep, "b.gguf"), tmp_path / "b.gguf")
    data = bytearray(out.path.read_bytes())
    where = out[f"blk.4.{OWN}"].blobs[0].offset
    data[where + 1] ^= 1
    out.path.write_bytes(data)
    receipt, against = lineage(open_checkpoint(out.path), None, source)
    assert (receipt.verdict, against.verdict) == ("fail", "fail")
    other = made(prune_vocab(source, some(source, 700, seed=1), "c.gguf"), tmp_path / "c.gguf")
    blob, data = other["d2t"].blobs[0], bytearray(other.path.read_bytes())
    data[blob.offset : blob.offset + blob.nbytes] = keep.ids.tobytes()
    other.path.write_bytes(data)
    assert [row.verdict for row in lineage(open_checkpoint(other.path), None, source)] == ["fail", "fail"]


def test_a_quantized_reduced_head_is_checked_against_its_source(tmp_path: Path) -> None:
    source = open_checkpoint(GGUF)
    alone = made(prune_vocab(source, some(source, 512), "s.gguf", sidecar=True), tmp_path / "s.gguf")
    out = made(quantize(alone, "q.gguf", Style.asked("Q8_0", own_output="Q8_0")), tmp_path / "q.gguf")
    assert out["output.weight"].codec == "Q8_0"
    assert [row.verdict for row in lineage(out, None, source)] == ["pass", "pass"]
    assert validate(out).ok


@pytest.mark.parametrize("family", ["glm4moe", "deepseekv3"])
def test_copies_of_the_embedding_and_the_output_matrix_go(tmp_path: Path, family: str) -> None:
    source = open_checkpoint(FIXTURES / family / "hf")
    own = [name for name in source if name.endswith(("embed_tokens.weight", "shared_head.head.weight"))]
    own = [name for name in own if ".layers." in name]
    plan = prune_vocab(source, some(source, 300), "out")
    assert own
    assert not set(own) & {entry.name for entry in plan.entries}
    copied = sum(source[name].nbytes for name in own if "embed" in name)
    assert any(f"{copied / 1e3:.1f} kB" in fact or f"{copied / 1e6:.1f} MB" in fact for fact in plan.facts), plan.facts
    kept = {entry.name for entry in prune_vocab(source, some(source, 300), "out", keep_embeddings=True).entries}
    assert {name for name in own if "embed" in name} <= kept


def test_an_embedding_that_is_no_copy_stays(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "glm4moe" / "hf", tmp_path / "other")
    name = next(n for n in open_checkpoint(folder) if ".layers." in n and n.endswith("embed_tokens.weight"))
    blob, data = open_checkpoint(folder)[name].blobs[0], bytearray((folder / "model.safetensors").read_bytes())
    data[blob.offset + blob.nbytes - 1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    source = open_checkpoint(folder)
    assert name in {entry.name for entry in prune_vocab(source, some(source, 300), "out").entries}


def test_layers_that_differ_keep_a_matrix_each(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "deepseekv3" / "hf", tmp_path / "other")
    ckpt = open_checkpoint(folder)
    names = sorted(n for n in ckpt if n.endswith("shared_head.head.weight"))
    assert len(names) == 2
    blob, data = ckpt[names[1]].blobs[0], bytearray((folder / "model.safetensors").read_bytes())
    data[blob.offset + 1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    source = open_checkpoint(folder)
    keep = some(source, 300)
    out = made(prune_vocab(source, keep, "out"), tmp_path / "out")
    for name in names:
        assert np.array_equal(decode(out[name]), decode(source[name])[keep.ids])
    assert validate(out).ok, validate(out).findings


def test_mlx_codes_and_scales_are_picked_together(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "qwen35" / "hf", tmp_path / "mlx")
    config = json.loads((folder / "config.json").read_text().replace('"tie_word_embeddings": true', '"x": false'))
    config["tie_word_embeddings"] = False
    config["quantization"] = {"group_size": 64, "bits": 4, "mode": "affine"}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    rows, columns = open_checkpoint(GGUF)["token_embd.weight"].shape
    words = np.random.default_rng(0).integers(0, 2**32, (rows, columns // 8), dtype=np.uint32)
    tensors["lm_head.weight"] = torch.from_numpy(words)
    for part in ("scales", "biases"):
        tensors[f"lm_head.{part}"] = torch.randn(rows, columns // 64, generator=torch.Generator().manual_seed(0))
    save_file(tensors, folder / "model.safetensors", {"format": "mlx"})
    source = open_checkpoint(folder)
    assert source.dialect == "mlx"
    keep = some(source, 250)
    plan = prune_vocab(source, keep, "out")
    write(plan, tmp_path / "out")
    read = load_file(tmp_path / "out" / "model.safetensors")
    for part in ("weight", "scales", "biases"):
        assert torch.equal(read[f"lm_head.{part}"], tensors[f"lm_head.{part}"][torch.from_numpy(keep.ids)])
    assert any("MTPLX" in fact for fact in plan.facts)


def test_a_matrix_with_scales_of_several_rows_is_read_and_written_in_bf16(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "qwen35moe" / "hf", tmp_path / "fp8")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    rows, columns = tensors["lm_head.weight"].shape
    tensors["lm_head.weight"] = tensors["lm_head.weight"].float().to(torch.float8_e4m3fn)
    scales = 1 + torch.arange(rows * columns // 128**2, dtype=torch.float32).view(rows // 128, columns // 128) / 8
    tensors["lm_head.weight_scale_inv"] = scales
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    source = open_checkpoint(folder)
    keep = some(source, 250)
    plan = prune_vocab(source, keep, "out")
    assert [entry.action for entry in plan.entries if entry.of_rows] == ["recode"]
    assert any(fact.startswith("not exact: codes and scales become BF16") for fact in plan.facts), plan.facts
    write(plan, tmp_path / "out")
    read = load_file(tmp_path / "out" / "model.safetensors")
    whole = tensors["lm_head.weight"].float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert read["lm_head.weight"].dtype == torch.bfloat16
    assert torch.equal(read["lm_head.weight"], whole.bfloat16()[torch.from_numpy(keep.ids)])
    assert "lm_head.weight_scale_inv" not in read


def test_shards_in_which_nothing_changes_become_links(tmp_path: Path) -> None:
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    first = split_by_gguf_py(GGUF, pieces / "model.gguf")
    source = open_checkpoint(first)
    assert len(source.files) > 2
    keep = some(source, 300)
    plan = prune_vocab(source, keep, "out.gguf", link=True)
    out = made(plan, tmp_path / "out.gguf")
    assert sum(file.linked is not None for file in plan.files) == len(plan.files) - 2  # metadata, and the head's
    whole = made(prune_vocab(open_checkpoint(GGUF), keep, "one.gguf"), tmp_path / "one.gguf")
    assert not diff(whole, out).changed
    assert not diff(whole, out).dropped


@pytest.mark.parametrize("family", ["glm4moe", "deepseekv3"])
def test_sidecars_with_an_output_matrix_of_their_own(tmp_path: Path, family: str) -> None:
    """In a GGUF the head of these has a copy of the output matrix, which stands beside it too."""
    folder = open_checkpoint(FIXTURES / family / "hf")
    whole = made(convert_gguf(folder, "w.gguf"), tmp_path / "w.gguf")
    side = made(extract(whole, "s.gguf"), tmp_path / "s.gguf")
    own = [name for name in side if name.endswith(OWN)]
    assert own
    keep = some(side, 300)
    out = made(prune_vocab(side, keep, "a.gguf"), tmp_path / "a.gguf")
    assert np.array_equal(raw(out.path, "output.weight"), raw(side.path, own[0])[keep.ids])
    assert not [name for name in out if name.endswith(OWN)]
    assert diff(out, made(prune_vocab(whole, keep, "b.gguf", sidecar=True), tmp_path / "b.gguf")).equal
    assert validate(out).ok
    assert diff(made(restore_vocab(out, side, "r.gguf"), tmp_path / "r.gguf"), side).equal


def test_a_sidecar_with_a_smaller_matrix_of_its_own(tmp_path: Path) -> None:
    source = made(quantize(open_checkpoint(GGUF), "q.gguf", Style.asked(own_output="Q4_K")), tmp_path / "q.gguf")
    side = made(extract(source, "s.gguf"), tmp_path / "s.gguf")
    keep = some(side, 300)
    out = made(prune_vocab(side, keep, "a.gguf"), tmp_path / "a.gguf")
    assert np.array_equal(raw(out.path, "output.weight"), raw(side.path, f"blk.4.{OWN}")[keep.ids])
    beside = made(prune_vocab(source, keep, "b.gguf"), tmp_path / "b.gguf")
    bare = made(extract(beside, "bare.gguf", bare=True), tmp_path / "bare.gguf")
    again = made(prune_vocab(bare, every_third(keep), "c.gguf"), tmp_path / "c.gguf")
    assert np.array_equal(raw(again.path, "output.weight"), raw(side.path, f"blk.4.{OWN}")[keep.ids[::3]])


def test_every_verb_that_keeps_a_reduced_head_says_who_loads_it(tmp_path: Path) -> None:
    source, folder = open_checkpoint(GGUF), open_checkpoint(FIXTURES / "qwen35" / "hf")
    keep = some(source, 512)
    side = made(prune_vocab(source, keep, "s.gguf", sidecar=True), tmp_path / "s.gguf")
    reduced = made(prune_vocab(folder, keep, "f"), tmp_path / "f")
    assert any("REFUSES THIS FILE" in fact for fact in quantize(side, "q.gguf", Style.asked("Q8_0")).facts)
    assert not any("--own-output" in fact for fact in prune_vocab(side, every_third(keep), "x.gguf").facts)
    assert any("vLLM" in fact for fact in extract(reduced, "x").facts)
    bare = made(extract(reduced, "bare", bare=True), tmp_path / "bare")
    assert validate(bare).ok, validate(bare).findings


def test_the_plan_says_loudly_who_loads_it() -> None:
    source = open_checkpoint(GGUF)
    keep = some(source, 300)
    beside, alone = (prune_vocab(source, keep, "x.gguf", sidecar=sidecar).facts for sidecar in (False, True))
    assert any("NO BUILD OF llama.cpp LOADS THIS FILE, not even" in fact and "--sidecar" in fact for fact in beside)
    assert any("RELEASED llama.cpp REFUSES THIS FILE" in fact and "29143" in fact for fact in alone)
    assert all(any("--own-output" in fact for fact in facts) for facts in (beside, alone))
    source.__dict__["family"] = replace(source.family, head=tuple(r for r in source.family.head if r.name != OWN))
    with pytest.raises(ConventionError, match="no place for an output matrix"):
        prune_vocab(source, keep, "x.gguf")
