"""Off-loaded packed weights, multiplied by kernels in triton's interpreter: the bits of those on the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.interpreted import HAVE, import_kernels

if not HAVE:
    pytest.skip("triton is not installed: there are no kernels", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("kernels are compiled where a GPU is, and not interpreted: pytest -m gpu", allow_module_level=True)

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import ahead, hold, offload
from mtptools.decoder.ahead import Ahead
from mtptools.decoder.build import Builder
from mtptools.decoder.load import load_model
from mtptools.decoder.offload import offloaded
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import how_held
from mtptools.decoder.resident import Resident
from mtptools.decoder.runs import Runs
from mtptools.decoder.settings import read_settings
from mtptools.decoder.trunk import Trunk
from mtptools.decoder.weights_gguf import GgufWeights
from tests.decoder import toy
from tests.decoder.adversary import Adversary, Deaf, Hasty
from tests.kernels.samples import sample

import_kernels()

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trunk_of(toy_path: Callable[..., Path]) -> Callable[[str], Trunk]:
    """Of a toy, its values not looked at."""

    def get(how: str) -> Trunk:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hold, "check_finite", lambda *_: None)
            return load_model(open_checkpoint(toy_path(False, "Q8_0")), weights=how, check=False).trunk

    return get


@torch.inference_mode()
def states(trunk: Trunk) -> torch.Tensor:
    """Of one token: its third layer comes to where the first one was."""
    return trunk.forward([5], trunk.new_cache()).post


def test_copies_at_their_worst(trunk_of: Callable[[str], Trunk], monkeypatch: pytest.MonkeyPatch) -> None:
    trunk, wanted = trunk_of("offloaded"), states(trunk_of("resident"))
    assert {how_held(weight) for block in trunk.blocks for _, weight in block.matrices()} == {"offloaded"}

    def on(lane: Adversary) -> Trunk:
        monkeypatch.setattr(ahead, "lane_of", lambda device: lane)
        found = ahead.ahead(trunk)
        assert all(isinstance(block, Ahead) for block in found.blocks)
        return found

    first = Adversary()
    assert torch.equal(states(on(first)), wanted)
    assert torch.equal(states(on(Adversary(first.issued))), wanted)
    for fault, foreseen in ((Deaf, first.issued), (Hasty, [(0, places) for _, places in first.issued])):
        assert not torch.equal(states(on(fault(foreseen))), wanted), fault


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Experts of every stack that is multiplied."""
    found: list[int] = []
    grouped = Resident.grouped
    monkeypatch.setattr(Resident, "grouped", lambda self, *args: found.append(self.shape[0]) or grouped(self, *args))
    return found


@pytest.mark.parametrize(("at_a_time", "batches"), [(1, [1] * 5), (4, [4, 1]), (1000, [5])])
def test_experts(at_a_time: int, batches: list[int], copied: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that rows meet are copied in batches, and no others: the bits of a stack that is there."""
    top, below = (sample(kind, 6 * height, 64)[0] for kind, height in (("Q8_0", 5), ("BF16", 3)))
    stack = Resident((top, below), (6, 8, 64), torch.float32, torch.arange(64).flip(0))
    monkeypatch.setattr(offload, "BATCH", at_a_time * stack.nbytes // 6)
    runs = Runs((0, 2, 3, 4, 5), (1, 1, 18, 2, 1), CPU)
    x = torch.randn((23, 64), generator=torch.Generator().manual_seed(1))
    found = Arithmetic.on(CPU).grouped(x, offloaded(stack, CPU), runs)
    assert copied == batches
    assert torch.equal(found, Arithmetic.on(CPU).grouped(x, stack, runs))


@torch.inference_mode()
def test_a_layer_with_experts(
    toy_path: Callable[..., Path], copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hold, "check_finite", lambda *_: None)
    ckpt = open_checkpoint(toy_path(True, "Q8_0"))
    x, found = torch.randn((1, toy.H), generator=torch.Generator().manual_seed(2)), []
    for how in ("resident", "offloaded"):
        builder = Builder(GgufWeights(ckpt), ckpt.hparams, read_settings(ckpt), CPU, torch.float32, how)
        found.append(builder.moe(("layer", 0)).forward(x))
    assert torch.equal(*found)
    assert copied == [toy.EXPERTS] * 2 + [toy.USED] * 2


def test_spans() -> None:
    assert list(offload._spans([0, 1, 2, 4, 7, 8])) == [(0, 3), (4, 5), (7, 9)]
    assert list(offload._spans([5, 3])) == [(5, 6), (3, 4)]
