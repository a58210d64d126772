"""Reduced heads as files hold them: each loads as the whole head reduced in memory does, or is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import selftest
from mtptools.decoder.acceptance import first_hits
from mtptools.decoder.importance import measure_importance
from mtptools.decoder.load import load_model, with_head, with_vocabulary
from mtptools.decoder.model import Model
from mtptools.decoder.recorder import Recorder
from mtptools.decoder.speculate import decode_plain
from mtptools.errors import CorruptError, InputError
from tests.conftest import FIXTURES
from tests.decoder import quantizers, toy, toy_v4
from tests.decoder.quantized_models import quantized
from tests.decoder.reduced_heads import DEPTH, KEPT, TRAINED, gguf_of, most, same, sidecar_of, trained, vocabulary
from tests.decoder.test_quantized_mlx import mlx_arrays


@pytest.mark.parametrize("alone", [False, True], ids=["bundled", "sidecar"])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf(
    kind: str,
    alone: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[..., Model],
) -> None:
    path = gguf_of(tmp_path / "reduced.gguf", monkeypatch, kind, alone=alone)
    whole = load(kind=kind, depth=DEPTH)
    if alone:
        ours = with_head(whole, open_checkpoint(path))
    else:
        ours = load_model(open_checkpoint(path), check=False)
        assert torch.equal(ours.trunk.output, whole.trunk.output)
    same(ours, with_vocabulary(whole, KEPT))
    assert ours.require_head().layers[1].output is ours.require_head().layers[0].output


def test_a_gguf_of_deepseek_v4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head is a file of its own in any case."""
    honest = toy_v4.to_gguf
    kept = vocabulary(range(1, toy_v4.VOCAB, 2), toy_v4.VOCAB)

    def reduced(arrays: toy_v4.Arrays, head: bool) -> toy_v4.Arrays:
        out = honest(arrays, head)
        return out | ({"d2t": kept.ids, "output.weight": out["output.weight"][kept.ids]} if head else {})

    trunk = toy_v4.write_gguf(tmp_path / "trunk.gguf", toy_v4.weights())
    whole = toy_v4.write_gguf(tmp_path / "head.gguf", toy_v4.weights(), head=True)
    monkeypatch.setattr(toy_v4, "to_gguf", reduced)
    small = toy_v4.write_gguf(tmp_path / "small.gguf", toy_v4.weights(), head=True)
    theirs = load_model(open_checkpoint(trunk), head=open_checkpoint(whole), check=False)
    same(with_head(theirs, open_checkpoint(small)), with_vocabulary(theirs, kept))


@pytest.mark.parametrize("name", TRAINED)
def test_a_sidecar_of_safetensors(name: str, tmp_path: Path) -> None:
    model = trained(name)
    kept = most(model.hparams.vocab_size)
    side = open_checkpoint(sidecar_of(name, tmp_path / "side", kept))
    same(with_head(model, side), with_vocabulary(model, kept))


def test_a_sidecar_of_mlx(tmp_path: Path) -> None:
    """lm_head in 8 bits: its words, scales and biases row by row."""
    path = tmp_path / "whole"
    arrays = mlx_arrays("qwen35moe", permutation.tensors("qwen35moe"), permutation.config("qwen35moe"))
    eight = partial(quantizers.mlx_affine, bits=8)
    stored, _ = quantized(arrays, lambda name, a: eight if a.ndim > 1 and "conv1d" not in name else None)
    config = permutation.config("qwen35moe") | {"quantization": {"group_size": 64, "bits": 8}}
    model = load_model(open_checkpoint(quantizers.write(path, stored, config, "mlx")), check=False)
    kept = most(model.hparams.vocab_size)
    side = {name: one for name, one in stored.items() if ".mtp." in name or name.startswith("mtp.")}
    cut = {name: (codec, a[kept.ids]) for name, (codec, a) in stored.items() if "lm_head." in name}
    assert len(cut) == 3
    side |= cut | {"d2t": ("I64", kept.offsets), "t2d": ("BOOL", kept.mask)}
    small = open_checkpoint(quantizers.write(tmp_path / "side", side, config, "mlx"))
    same(with_head(model, small), with_vocabulary(model, kept))


def test_layers_with_matrices_of_their_own(tmp_path: Path) -> None:
    """Two MTP layers of a sidecar, each with its own rows instead of one lm_head."""
    model = trained("deepseekv3")
    kept = most(model.hparams.vocab_size)
    matrix = model.require_head().layers[0].output[torch.from_numpy(kept.ids)]
    names = [f"model.layers.{n}.shared_head.head.weight" for n in (3, 4)]
    own = dict(zip(names, (matrix.clone(), -matrix), strict=True))
    side = sidecar_of("deepseekv3", tmp_path / "side", kept, **own, **{"lm_head.weight": None})
    first, second = with_head(model, open_checkpoint(side)).require_head().layers
    assert torch.equal(first.output, matrix)
    assert torch.equal(second.output, -matrix)


def test_a_folder_with_a_trunk_too(tmp_path: Path) -> None:
    """Its lm_head is the trunk's: there is no place for another."""
    arrays = load_file(FIXTURES / "qwen35moe/hf/model.safetensors")
    ids = torch.from_numpy(most(2048).ids)
    mask = torch.from_numpy(most(2048).mask)
    save_file(arrays | {"d2t": ids - torch.arange(len(ids)), "t2d": mask}, tmp_path / "model.safetensors")
    shutil.copy(FIXTURES / "qwen35moe/hf/config.json", tmp_path)
    with pytest.raises(InputError, match="a draft vocabulary of 1536 tokens beside a whole model"):
        load_model(open_checkpoint(tmp_path))


# --- faults ----------------------------------------------------------------------------------------------------

GGUF_FAULTS = {
    "no matrix": ({"own": False}, "no output matrix of the head's own"),
    "longer": ({"d2t": np.arange(300)}, r"d2t names 300 tokens, blk.3.nextn.shared_head_head.weight has the shape"),
    "wild": ({"d2t": KEPT.ids + 1}, r"ids out of range \(1 of them, 384 the first"),
    "unsorted": ({"d2t": KEPT.ids[::-1].copy()}, "not in ascending order"),
    "twice": ({"d2t": np.sort(np.r_[KEPT.ids[1:], KEPT.ids[-1:]])}, r"more than once \(1 of them, 383 the first"),
    "offsets": ({"d2t": KEPT.offsets}, "more than once"),
    "type": ({"d2t": KEPT.ids.astype(np.int32)}, "d2t is I32, not I64"),
    "matrix alone": ({"d2t": KEPT.ids[:, None].copy()}, "it holds no list of ids"),
}


@pytest.mark.parametrize(("fault", "message"), GGUF_FAULTS.values(), ids=list(GGUF_FAULTS))
def test_a_damaged_gguf(
    fault: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gguf_of(tmp_path / "reduced.gguf", monkeypatch, **fault)  # type: ignore[arg-type]
    with pytest.raises(CorruptError, match=message) as raised:
        load_model(open_checkpoint(path), check=False)
    assert raised.value.hint == f"mtptools validate {path}"


def test_a_map_without_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy._TOP_NAMES, "d2t", "d2t")
    bare = {name: a for name, a in toy.weights(False).items() if not name.startswith("mtp.")}
    path = toy.write_gguf(tmp_path / "trunk.gguf", bare | {"d2t": KEPT.ids}, False, depth=0)
    with pytest.raises(InputError, match="no use for d2t"):
        load_model(open_checkpoint(path))


def test_offsets_in_a_gguf_that_look_like_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: Callable[..., Model]
) -> None:
    """Nothing can tell but the drafts: they are of other tokens."""
    ids = np.arange(2, toy.VOCAB, 3)  # of which the offsets 2, 4, 6 … ascend as well
    matrix = toy.weights(False, DEPTH)["lm_head.weight"][ids]
    made = [
        gguf_of(tmp_path / f"{n}.gguf", monkeypatch, d2t=d2t, matrix=matrix)
        for n, d2t in enumerate((ids, vocabulary(ids).offsets))
    ]
    right, wrong = (load_model(open_checkpoint(path), check=False) for path in made)
    plain = decode_plain(right, [7, 300, 12, 5], 40, keep_states=True)
    hits = [int(first_hits(model.require_head(), plain).sum()) for model in (right, wrong)]
    assert hits[0] > 5
    assert hits[1] == 0


def test_ids_where_a_folder_has_offsets(tmp_path: Path) -> None:
    model, ids = trained("qwen35"), torch.from_numpy(most(2048).ids)

    def refused(name: str, message: str, **changes: torch.Tensor | None) -> None:
        side = open_checkpoint(sidecar_of("qwen35", tmp_path / name, most(2048), **changes))
        with pytest.raises(CorruptError, match=message) as raised:
            with_head(model, side)
        assert "mtptools validate" in str(raised.value.hint)

    refused("ids", "ids out of range", d2t=ids)
    few = torch.arange(0, 600, 2)
    rows = model.trunk.output[:300].bfloat16()
    mask = torch.zeros(2048, dtype=torch.bool)
    mask[few] = True
    refused("few", "t2d and d2t disagree about", d2t=few, t2d=mask, **{"lm_head.weight": rows})
    refused("alone", "could be ids as well as offsets", d2t=few, t2d=None, **{"lm_head.weight": rows})
    refused("mask", r"t2d is BOOL \[100\], not BOOL \[2048\]", t2d=mask[:100])
    refused("float", "d2t is F32, not I64 or I32", d2t=ids.float())
    refused("short", r"d2t names 1536 tokens, lm_head.weight has the shape \[300, 256\]", **{"lm_head.weight": rows})
    with pytest.raises(InputError, match="no use for t2d"):
        with_head(model, open_checkpoint(sidecar_of("qwen35", tmp_path / "t2d", most(2048), d2t=None)))


def test_offsets_that_cannot_be_ids_need_no_mask(tmp_path: Path) -> None:
    model = trained("qwen35")
    side = open_checkpoint(sidecar_of("qwen35", tmp_path / "side", most(2048), t2d=None))
    same(with_head(model, side), with_vocabulary(model, most(2048)))


# --- what goes with it -----------------------------------------------------------------------------------------


def test_the_reduced_shape_is_tested_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_path: Callable[..., Path], load: Callable[..., Model]
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(selftest, "check_rows", lambda fn, width, what, *rest: tried.append(what))
    for reduce in (
        lambda: with_vocabulary(load(), KEPT),
        lambda: load_model(open_checkpoint(gguf_of(tmp_path / "a.gguf", monkeypatch))),
        lambda: with_head(load(), open_checkpoint(gguf_of(tmp_path / "b.gguf", monkeypatch, alone=True))),
    ):
        monkeypatch.setattr(selftest, "_PASSED", set())
        tried.clear()
        reduce()
        assert f"output [{len(KEPT)}, {toy.H}] float32 on cpu" in tried


def test_importance_of_a_reduced_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states that a draft's output matrix meets are the same: so is what weights its columns."""
    path = gguf_of(tmp_path / "reduced.gguf", monkeypatch)
    monkeypatch.delitem(toy._TOP_NAMES, "d2t")
    whole = toy.write_gguf(tmp_path / "whole.gguf", toy.weights(False, DEPTH), False, depth=DEPTH)
    entries = []
    for one in (path, whole):
        recorder = Recorder()
        model = load_model(open_checkpoint(one), recorder=recorder, check=False)
        entries.append(measure_importance(model, recorder, [list(range(20))]).entries)
    for d in range(DEPTH):
        name = f"blk.{toy.LAYERS + d}.nextn.shared_head_head.weight"
        ours, theirs = (found[name] for found in entries)
        assert ours.sums.shape == (1, toy.H)
        assert np.array_equal(ours.sums, theirs.sums)
    assert json.dumps(sorted(entries[0])) == json.dumps(sorted(entries[1]))
