"""Passes recorded as CUDA graphs; on the CPU as what a tape makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mtptools.decoder import kernels, replay
from mtptools.decoder.cache import CHUNK
from mtptools.decoder.parity import compare
from mtptools.decoder.replay import cannot
from mtptools.decoder.speculate import decode_plain, decode_speculative
from tests.gpu import artifacts
from tests.gpu.cases import on

RECORDED = [name for name in artifacts.FIXED if name != "deepseekv4"]


@pytest.mark.parametrize(("device", "name"), on(RECORDED, ["deepseekv3"]))
def test_bits(device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latent attention, biases and groups of experts too."""
    if device.type == "cuda":
        _decoding(device, name)
        return
    from tests.decoder.tape import decoded, recorded, same

    monkeypatch.setattr(kernels, "chosen", lambda device: True)
    monkeypatch.setattr(replay, "LEAST", 2 * CHUNK)
    artifacts.load.cache_clear()  # what was loaded before does without them
    trunk = artifacts.load(name, device, "resident", "float32").trunk
    artifacts.load.cache_clear()
    last = replace(trunk, blocks=trunk.blocks[-1:])
    assert cannot(last.blocks, device, kernels=True) is None
    ours, replays = recorded(last)
    passes = [(1, 1), (1, 1), (1, 1), (1, 1)]
    assert same(decoded(ours, passes), decoded(last, passes))
    assert replays.replayed > replays.compared > 1


def _decoding(device: torch.device, name: str) -> None:
    model, prompt = artifacts.load(name, device, "resident", "bfloat16"), artifacts.prompt_of(name)
    replays = model.trunk.replays
    assert replays is not None
    head = replace(model.require_head())
    eager = replace(model, trunk=replace(model.trunk), head=head)
    assert eager.trunk.replays is None
    assert not head.replays
    plain = decode_plain(eager, prompt, 40)
    assert compare(plain, decode_plain(model, prompt, 40)).equal
    for k in (1, 3):
        assert compare(plain, decode_speculative(model, prompt, 40, k)).equal
    assert not replays.refused
    assert replays.replayed > replays.compared > 1


@pytest.mark.parametrize(("device", "name"), on(["deepseekv4"], []))
def test_models_that_are_not_recorded(device: torch.device, name: str) -> None:
    assert artifacts.load(name, device, "resident", "bfloat16").trunk.replays is None
