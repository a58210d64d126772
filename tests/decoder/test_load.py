"""Loading: both dialects, every layout, and clear errors for what is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import selftest
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.weights_gguf import tiled_heads
from mtptools.errors import (
    CodecError,
    CorruptError,
    IncompatibleError,
    InputError,
    MissingHeadError,
    MissingRoleError,
    SystemFailure,
    UsageError,
)
from tests.decoder import toy

IDS = [5, 17, 255, 3, 99, 42]


@torch.inference_mode()
def outcome(model: Model) -> torch.Tensor:
    return model.trunk.logits(model.trunk.forward(IDS, model.trunk.new_cache()))


def same(a: Model, b: Model) -> None:
    """Equal logits, equal heads, up to the last bits that -exp and 1 + w leave."""
    torch.testing.assert_close(outcome(a), outcome(b), rtol=0, atol=2e-5)
    ours, theirs = a.require_head().layers[0], b.require_head().layers[0]
    for name in ("fuse", "embed_norm", "hidden_norm", "norm"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    torch.testing.assert_close(ours.block.mixer.weights.qkvg, theirs.block.mixer.weights.qkvg)


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_dialects_agree(moe: bool, load: Callable[..., Model]) -> None:
    same(load(moe, "hf"), load(moe, "F32"))
    assert not torch.equal(outcome(load(moe, "Q4_K")), outcome(load(moe, "F32")))


def test_more_value_heads_than_key_heads_are_regrouped() -> None:
    assert tiled_heads(2, 6).tolist() == [0, 3, 1, 4, 2, 5]


def test_wrapped_names_and_separate_experts(tmp_path: Path, load: Callable[..., Model]) -> None:
    """A multimodal wrapper's prefix, and experts one by one as the 3.5 release has them."""
    arrays: toy.Arrays = {}
    for name, a in toy.weights(True).items():
        name = name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stem, kind = name.rsplit(".", 1)
            for e in range(toy.EXPERTS):
                if kind == "down_proj":
                    arrays[f"{stem}.{e}.down_proj.weight"] = a[e].copy()
                else:
                    arrays[f"{stem}.{e}.gate_proj.weight"] = a[e, : toy.MOE_FFN].copy()
                    arrays[f"{stem}.{e}.up_proj.weight"] = a[e, toy.MOE_FFN :].copy()
        else:
            arrays[name] = a
    same(load_model(open_checkpoint(toy.write_hf(tmp_path / "m", arrays, True))), load(True))


def test_tied_embeddings(tmp_path: Path) -> None:
    arrays = toy.weights(False)
    del arrays["lm_head.weight"]
    model = load_model(open_checkpoint(toy.write_gguf(tmp_path / "tied.gguf", arrays, False)))
    assert model.trunk.output is model.trunk.embed
    assert model.require_head().layers[0].output is model.trunk.embed


def test_own_embedding_and_output_of_a_gguf_head(tmp_path: Path) -> None:
    toy_arrays = toy.weights(False)
    path = tmp_path / "own.gguf"
    names = toy._HEAD_NAMES
    try:
        names["mtp.own_embed"] = "nextn.embed_tokens.weight"
        names["mtp.own_output"] = "nextn.shared_head_head.weight"
        own = {"mtp.own_embed": toy_arrays["lm_head.weight"], "mtp.own_output": toy_arrays["model.embed_tokens.weight"]}
        toy.write_gguf(path, toy_arrays | own, False)
    finally:
        del names["mtp.own_embed"], names["mtp.own_output"]
    model = load_model(open_checkpoint(path))
    head = model.require_head()
    assert torch.equal(head.layers[0].embed, model.trunk.output)
    assert torch.equal(head.layers[0].output, model.trunk.embed)


def head_only(arrays: toy.Arrays) -> toy.Arrays:
    return {name: a for name, a in arrays.items() if name.startswith(("mtp.", "model.embed", "model.norm", "lm_head"))}


@pytest.mark.parametrize("trunk", ["hf", "gguf"])
@pytest.mark.parametrize("sidecar", ["hf", "gguf"])
def test_head_from_another_file(tmp_path: Path, trunk: str, sidecar: str, load: Callable[..., Model]) -> None:
    arrays = toy.weights(True)
    bare = {name: a for name, a in arrays.items() if not name.startswith("mtp.")}
    if trunk == "hf":
        base = toy.write_hf(tmp_path / "trunk", bare, True, 0)
    else:
        base = toy.write_gguf(tmp_path / "trunk.gguf", bare, True, "F32", 0)
    if sidecar == "hf":
        side = toy.write_hf(tmp_path / "side", head_only(arrays), True)
    else:
        side = toy.write_gguf(tmp_path / "side.gguf", head_only(arrays), True)
    same(load_model(open_checkpoint(base), head=open_checkpoint(side)), load(True))


def test_no_head(tmp_path: Path) -> None:
    bare = {name: a for name, a in toy.weights(False).items() if not name.startswith("mtp.")}
    for depth, said in ((1, r"declares 1 MTP layer\(s\), their tensors are not there"), (0, "none declared")):
        for path in (
            toy.write_hf(tmp_path / f"hf{depth}", bare, False, depth),
            toy.write_gguf(tmp_path / f"{depth}.gguf", bare, False, depth=depth),
        ):
            model = load_model(open_checkpoint(path))
            with pytest.raises(MissingHeadError, match=said) as error:
                model.require_head()
            assert "mtptools graft" in str(error.value.hint)


@pytest.mark.parametrize(
    "name",
    ["mtp.fc.weight", "mtp.layers.0.self_attn.k_proj.weight", "model.layers.1.linear_attn.A_log", "lm_head.weight"],
)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    arrays = toy.weights(False)
    del arrays[name]
    with pytest.raises(MissingRoleError, match=name.replace(".", r"\.")):
        load_model(open_checkpoint(toy.write_hf(tmp_path, arrays, False)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(tmp_path: Path, value: float) -> None:
    arrays = toy.weights(False)
    arrays["mtp.layers.0.mlp.up_proj.weight"][3, 5] = value
    with pytest.raises(CorruptError, match=r"mtp\.layers\.0\.mlp\.up_proj\.weight holds values that are not finite"):
        load_model(open_checkpoint(toy.write_hf(tmp_path, arrays, False)))


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.q_proj.weight", "mtp.fc.weight", "model.norm.weight"])
def test_a_wrong_shape_is_named(tmp_path: Path, name: str) -> None:
    arrays = toy.weights(False)
    arrays[name] = arrays[name][..., :-1].copy()
    with pytest.raises(CorruptError, match="does not fit"):
        load_model(open_checkpoint(toy.write_hf(tmp_path / "cols", arrays, False)))
    arrays[name] = toy.weights(False)[name][:-1].copy()
    with pytest.raises(CorruptError, match="does not fit"):
        load_model(open_checkpoint(toy.write_hf(tmp_path / "rows", arrays, False)))


def test_a_scale_of_no_known_layout_is_named(tmp_path: Path) -> None:
    arrays = toy.weights(False) | {"mtp.layers.0.mlp.up_proj.scale": np.zeros(4, np.float32)}
    with pytest.raises(CodecError, match=r"\.scale F32\[4\] beside it is no layout known here"):
        load_model(open_checkpoint(toy.write_hf(tmp_path, arrays, False)))


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.q_proj.bias", "mtp.layers.0.mlp.extra.weight", "mtp.x"])
def test_a_tensor_without_use_is_named(tmp_path: Path, name: str) -> None:
    arrays = toy.weights(False) | {name: np.zeros(4, np.float32)}
    with pytest.raises(InputError, match=f"has no use for {re.escape(name)}"):
        load_model(open_checkpoint(toy.write_hf(tmp_path, arrays, False)))


def test_a_gguf_tensor_without_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block, rest in ((1, "ssm_in.weight"), (toy.LAYERS, "nextn.eh_proj.scale")):
        kind = "mtp.layers.0" if block == toy.LAYERS else f"model.layers.{block}"
        monkeypatch.setitem(toy._NAMES, "extra", rest)
        arrays = toy.weights(False) | {f"{kind}.extra": np.zeros(4, np.float32)}
        path = toy.write_gguf(tmp_path / f"{block}.gguf", arrays, False)
        with pytest.raises(InputError, match=rf"has no use for blk\.{block}\.{re.escape(rest)}"):
            load_model(open_checkpoint(path))


def test_unknown_scaling_of_positions_is_refused(tmp_path: Path) -> None:
    folder = toy.write_hf(tmp_path, toy.weights(False), False)
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "longrope", "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"scaled \(longrope\)"):
        load_model(open_checkpoint(folder))


def test_a_head_of_another_family(toy_path: Callable[..., Path]) -> None:
    with pytest.raises(IncompatibleError, match="family: trunk qwen35, head qwen35moe"):
        load_model(open_checkpoint(toy_path(False)), head=open_checkpoint(toy_path(True)))


def test_what_cannot_be_asked_for(toy_path: Callable[..., Path]) -> None:
    ckpt = open_checkpoint(toy_path(False))
    with pytest.raises(UsageError, match="float8"):
        load_model(ckpt, dtype="float8")
    with pytest.raises(SystemFailure, match="cannot be used"):
        load_model(ckpt, device="cuda:63")


def test_start_up_self_test_refuses_inexact_arithmetic(
    toy_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Arithmetic._one_by_one
    monkeypatch.setattr(selftest, "_PASSED", set())
    monkeypatch.setattr(Arithmetic, "_one_by_one", lambda ops, x, w: honest(ops, x, w) * (1 + 1e-6 * x.shape[0]))
    with pytest.raises(SystemFailure, match=r"output \[384, 256\] float32 on cpu: row 0 of 2"):
        load_model(open_checkpoint(toy_path(False)))
    load_model(open_checkpoint(toy_path(False)), check=False)
