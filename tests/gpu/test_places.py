"""Layers on several devices, in the host's memory, or read one by one: the bits of one device."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.packed import how_held
from mtptools.decoder.parity import compare
from mtptools.decoder.pipeline import Elsewhere
from mtptools.decoder.placement import Placement
from mtptools.decoder.speculate import decode_plain, decode_speculative
from tests.conftest import FIXTURES
from tests.gpu import artifacts
from tests.gpu.artifacts import prompt_of
from tests.gpu.cases import CPU, GPU, on

Command = Callable[..., tuple[int, str, str]]

NAMES = ("qwen35", "qwen35moe", "deepseekv4")


def run_on(devices: Sequence[torch.device], name: str, how: str) -> None:
    """Layers on the devices in turn give the bits of the first alone; a draft's pass, too."""
    ckpt = open_checkpoint(FIXTURES / name / "hf")
    layers = ckpt.hparams.n_layers
    places = Placement(tuple(devices), tuple(n * len(devices) // layers for n in range(layers)))
    options = {"dtype": "bfloat16", "weights": how, "check": False}
    split = load_model(ckpt, device=places, **options)  # type: ignore[arg-type]
    assert {block.device for block in split.trunk.blocks if isinstance(block, Elsewhere)} == set(devices)
    one = load_model(ckpt, device=str(devices[0]), **options)  # type: ignore[arg-type]
    n = 32 if devices[0].type == "cuda" else 6
    plain = decode_plain(one, prompt_of(name), n)
    assert compare(plain, decode_plain(split, prompt_of(name), n)).equal
    assert compare(plain, decode_speculative(split, prompt_of(name), n, 3)).equal


@pytest.mark.gpu
@pytest.mark.parametrize("how", ["resident", "loaded", "offloaded"])
@pytest.mark.parametrize("name", NAMES)
def test_two_gpus(name: str, how: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU: a split needs two")
    run_on([GPU, torch.device("cuda:1")], name, how)


def test_two_devices_that_are_one() -> None:
    run_on([CPU, CPU], "qwen35", "loaded")


@pytest.mark.gpu
def test_a_device_list() -> None:
    """As `--device cuda:0,cuda:1` has it: memory decides where layers go."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU: a split needs two")
    ckpt = open_checkpoint(FIXTURES / "qwen35" / "hf")
    split = load_model(ckpt, device="cuda:0,cuda:1", dtype="bfloat16", check=True)
    one = artifacts.load("qwen35", GPU, "resident", "bfloat16")
    assert compare(decode_plain(one, prompt_of("qwen35"), 32), decode_plain(split, prompt_of("qwen35"), 32)).equal


@pytest.mark.parametrize(
    ("device", "name", "same"),
    on([(name, "resident") for name in (*NAMES, "qwen35 Q4_K", "qwen35moe Q8_0")], [("qwen35", "loaded")]),
)
def test_offloaded(device: torch.device, name: str, same: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == CPU:  # by the loaded path: the interpreter's has its tests elsewhere
        for module in ("hold", "load"):
            monkeypatch.setattr(f"mtptools.decoder.{module}.unavailable", lambda _: "none are to be used")
    model = artifacts.load(name, device, "offloaded", "bfloat16")
    assert "offloaded" in {how_held(weight) for block in model.trunk.blocks for _, weight in block.matrices()}
    n = 32 if device.type == "cuda" else 6
    plain = decode_plain(artifacts.load(name, device, same, "bfloat16"), prompt_of(name), n)
    assert compare(plain, decode_plain(model, prompt_of(name), n)).equal
    assert compare(plain, decode_speculative(model, prompt_of(name), n, 2)).equal


def streamed(command: Command, device: torch.device, name: str, positions: int, *flags: str) -> dict[str, Any]:
    path = FIXTURES / name / "hf"
    options = ("--positions", positions, "--window", 256, "--k", 2, "--device", device, "--json", *flags)
    code, out, err = command("verify", path, "--stream", *options)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)["stream"]
    return found


@pytest.mark.parametrize(("device", "name", "positions"), on([(name, 512) for name in artifacts.HF], [("qwen35", 64)]))
@pytest.mark.parametrize("flags", [(), ("--exact",)])
def test_stream(device: torch.device, name: str, positions: int, flags: tuple[str, ...], command: Command) -> None:
    """One pass over the model from the command line, against the CPU's: the same choices but for a few ties."""
    there, here = (streamed(command, one, name, positions, *flags) for one in (device, CPU))
    assert there["positions"] == here["positions"]
    assert abs(there["trunk"]["agreement"] - here["trunk"]["agreement"]) <= 2 / positions
    assert there["trunk"]["loss"] == pytest.approx(here["trunk"]["loss"], abs=1e-4)
    assert there["fingerprint"]["device"] == str(device)
