"""Models whose weights stay packed on a device, are off-loaded, or stand on several: the bits of decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.interpreted import HAVE, import_kernels

if not HAVE:
    pytest.skip("triton is not installed: there are no kernels", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("kernels are compiled where a GPU is, and not interpreted: pytest -m gpu", allow_module_level=True)

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import hold, load, selftest
from mtptools.decoder.build import Builder
from mtptools.decoder.load import load_model, with_vocabulary
from mtptools.decoder.model import Model
from mtptools.decoder.moe import Moe
from mtptools.decoder.offload import Offloaded
from mtptools.decoder.packed import Weight, dense, how_held
from mtptools.decoder.parity import compare
from mtptools.decoder.pipeline import Elsewhere
from mtptools.decoder.placement import Placement
from mtptools.decoder.recorder import Recorder
from mtptools.decoder.report import fingerprint
from mtptools.decoder.resident import Resident
from mtptools.decoder.settings import read_settings
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trunk import Block
from mtptools.decoder.weights_gguf import GgufWeights
from mtptools.errors import SystemFailure, UsageError
from mtptools.vocab.maps import Absolute, DraftVocabulary
from tests.decoder import toy

import_kernels()

CPU = torch.device("cpu")
PROMPT = [5, 200, 33]
GGUF = Path(__file__).parents[2] / "fixtures/qwen35/gguf"


def matrices(model: Model) -> list[tuple[str, Weight]]:
    layers = [*model.trunk.blocks, *(layer.block for layer in model.require_head().layers)]
    stacks = [
        found
        for layer in layers
        if isinstance(ffn := getattr(layer, "ffn", None), Moe)
        for found in (("experts", ffn.weights.gate_up), ("experts' down", ffn.weights.down))
    ]
    tops = [("embed", model.trunk.embed), ("output", model.trunk.output)]
    return [*tops, *(found for layer in layers for found in layer.matrices()), *stacks]


@pytest.fixture(scope="module")
def held(toy_path: Callable[..., Path]) -> Callable[..., Model]:
    """(moe, type, how, dtype) to a toy, its start-up test left out, its values not looked at."""

    def get(moe: bool, kind: str, how: str, dtype: str = "float32", **more: object) -> Model:
        ckpt = open_checkpoint(toy_path(moe, kind))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hold, "check_finite", lambda *_: None)
            return load_model(ckpt, dtype=dtype, weights=how, check=False, **more)  # type: ignore[arg-type]

    return get


@pytest.mark.parametrize(("moe", "kind", "dtype"), [(True, "Q8_0", "float32"), (False, "BF16", "float32")])
def test_values_are_those_of_loading(moe: bool, kind: str, dtype: str, held: Callable[..., Model]) -> None:
    """Experts one under the other, tiled value heads by rows and by columns among them."""
    ours, theirs = (matrices(held(moe, kind, how, dtype)) for how in ("resident", "loaded"))
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    for (name, one), (_, other) in zip(ours, theirs, strict=True):
        assert torch.equal(dense(one), dense(other)), name
        assert isinstance(one, Resident) == (name != "router")
    embed, rows = ours[0][1], torch.tensor([7, 300, 7])
    assert torch.equal(embed[rows], dense(theirs[0][1])[rows])


def test_decoding(held: Callable[..., Model]) -> None:
    """Plain and speculative bits are one; logits are near those of loaded weights, in another order of sums."""
    model, loaded = (short(held(False, "Q4_K", how)) for how in ("resident", "loaded"))
    plain = decode_plain(model, PROMPT[:1], 3)
    trace = decode_speculative(model, PROMPT[:1], 3, 1, corrupt=lambda drafts, step: plain.tokens[1:2])
    assert compare(plain, trace).equal
    assert sum(trace.drafts.accepted) == 1  # two rows in a pass
    ours, theirs = (prompt_logits(one) for one in (model, loaded))
    assert not torch.equal(ours, theirs)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def short(model: Model) -> Model:
    """A recurrent layer and one of attention."""
    return replace(model, trunk=replace(model.trunk, blocks=model.trunk.blocks[-2:]))


@torch.inference_mode()
def prompt_logits(model: Model) -> torch.Tensor:
    return model.trunk.logits(model.trunk.forward(PROMPT, model.trunk.new_cache()))


@torch.inference_mode()
def test_experts_in_one_launch(toy_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits, and what a recorder hears, are those of one launch an expert."""
    ckpt = open_checkpoint(toy_path(True, "Q8_0"))
    outs, heard = [], []
    for at_once in (True, False):
        monkeypatch.setattr(Resident, "at_once", at_once)
        recorder = Recorder("all")
        builder = Builder(
            GgufWeights(ckpt), ckpt.hparams, read_settings(ckpt), CPU, torch.float32, "resident", recorder
        )
        ffn = builder.moe(("layer", 0))
        recorder.on = True
        assert bool(list(ffn.stacks())) == at_once
        outs.append(ffn.forward(torch.randn((19, toy.H), generator=torch.Generator().manual_seed(1))))
        heard.append({name: entry for name, entry in recorder.entries().items() if "_exps" in name})
    assert torch.equal(*outs)
    assert len(heard[0]) == 3
    for name, entry in heard[0].items():
        assert np.array_equal(entry.sums, heard[1][name].sums)
        assert entry.counts.sum() == 19 * toy.USED


def test_offloaded(held: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels: bits of loaded weights; experts are copied only where rows meet them."""
    for module in (hold, load):
        monkeypatch.setattr(module, "unavailable", lambda device: "none are to be used")
    copied: list[int] = []
    here = Offloaded.here
    monkeypatch.setattr(Offloaded, "here", lambda self: copied.append(self.numel()) or here(self))
    model = held(True, "Q8_0", "offloaded")
    assert how_held(model.trunk.output) == "loaded"
    assert {how_held(weight) for name, weight in matrices(model)[2:] if name == "mixer input"} == {
        "offloaded",
        "loaded",
    }
    plain = decode_plain(model, PROMPT, 2)
    assert compare(plain, decode_plain(held(True, "Q8_0", "loaded"), PROMPT, 2)).equal
    assert compare(plain, decode_speculative(model, PROMPT, 2, 1)).equal
    assert max(copied) <= 1200 * toy.H  # no stack of experts, no embedding


@pytest.mark.parametrize("how", ["loaded", "stored"])
def test_layers_on_several_devices(how: str, held: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices that are one: the bits of one, and every layer's input came to it."""
    moved: list[torch.device] = []
    forward = Elsewhere.forward
    monkeypatch.setattr(Elsewhere, "forward", lambda self, *args: moved.append(self.device) or forward(self, *args))
    split = held(False, "Q8_0", how, device=Placement((CPU, CPU), (0, 1, 1)))
    plain = decode_plain(split, PROMPT, 3)
    assert moved == [CPU] * toy.LAYERS * 3
    assert compare(plain, decode_plain(held(False, "Q8_0", how), PROMPT, 3)).equal
    assert compare(plain, decode_speculative(split, PROMPT, 3, 1)).equal


def test_the_residual_stream_moves() -> None:
    """To the layer's device before it and to the next one's after it; torch's device without memory stands for one."""

    class Doubling(Block):
        def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
            assert x.device.type == "meta"
            return x + x

    layer = Elsewhere(object.__new__(Doubling), torch.device("meta"), torch.device("meta"))
    assert layer.forward(torch.ones(2, 3), None, 0, []).device.type == "meta"


def test_a_device_list_splits_layers(toy_path: Callable[..., Path]) -> None:
    model = load_model(open_checkpoint(toy_path(False, "Q8_0")), device="cpu,cpu", check=False)
    assert all(isinstance(block, Elsewhere) for block in model.trunk.blocks)


def test_inexact_products_are_refused(held: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_PASSED", set())
    product = Resident.product
    monkeypatch.setattr(Resident, "product", lambda self, x, dtype: product(self, x, dtype) * (1 + len(x) * 2**-20))
    with pytest.raises(SystemFailure, match=r"output \[384, 256\] Q8_0 as float32 on cpu: row 0 of 2"):
        selftest.self_test(held(False, "Q8_0", "resident"))


def test_a_reduced_head(held: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtptools.decoder.load.self_test", lambda model: None)
    vocabulary = DraftVocabulary(Absolute(np.array([3, 4, 5, 100, 383])), toy.VOCAB)
    model = held(False, "Q8_0", "resident")
    output = dense(with_vocabulary(model, vocabulary).require_head().layers[0].output)
    assert torch.equal(output, dense(model.trunk.output)[[3, 4, 5, 100, 383]])


def test_fingerprint(held: Callable[..., Model]) -> None:
    found = fingerprint(held(False, "Q8_0", "resident"))
    assert found["weights"] == ["resident"]
    assert "Q8_0" in found["tiles"]
    assert len(found["tiles_digest"]) == 64
    assert "tiles" not in fingerprint(held(False, "Q8_0", "loaded"))


def test_refusals(toy_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = open_checkpoint(toy_path(False, "Q8_0"))
    with pytest.raises(UsageError, match="cannot be held"):
        load_model(ckpt, weights="packed")
    monkeypatch.setattr(load, "unavailable", lambda device: "triton is not installed")
    with pytest.raises(SystemFailure, match="triton is not installed"):
        load_model(ckpt, weights="resident")
