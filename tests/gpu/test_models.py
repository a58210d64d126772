"""Whole models on the device: plain and speculative bits are one, and choices are those of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.ops import Arithmetic
from tests.gpu import artifacts
from tests.gpu.cases import CPU, on
from tests.gpu.decoding import KS, SAMPLINGS, speculative_is_plain
from tests.gpu.near_ties import apart

WAYS = [("resident", "bfloat16"), ("resident", "float32"), ("resident", "float16"), ("loaded", "bfloat16")]
EVERY = [(name, how, dtype) for name in artifacts.FIXED for how, dtype in WAYS]


@torch.inference_mode()
def logits_of(model: Model, ids: Sequence[int]) -> Tensor:
    return model.trunk.logits(model.trunk.forward(ids, model.trunk.new_cache()))


@pytest.mark.parametrize(
    ("device", "name", "how", "dtype"),
    on(EVERY, [("qwen35moe Q8_0", "loaded", "float32")]),
)
def test_speculative_is_plain(device: torch.device, name: str, how: str, dtype: str) -> None:
    model = artifacts.load(name, device, how, dtype)
    prompt = artifacts.prompt_of(name)
    if device.type == "cuda":
        speculative_is_plain(model, prompt, 40)
    else:
        speculative_is_plain(model, prompt, 12, [1, 3], SAMPLINGS)


@pytest.mark.parametrize(
    ("device", "name", "how", "dtype"),
    on(EVERY, [("qwen35moe", "resident", "bfloat16"), ("glm4moe", "loaded", "float32")]),
)
def test_near_the_cpu(device: torch.device, name: str, how: str, dtype: str) -> None:
    """The same text by both: logits within the bounds, and every other choice a near-tie."""
    ids = artifacts.text_of(name)[: None if device.type == "cuda" else 20]
    found = apart(
        logits_of(artifacts.load(name, CPU, "loaded", dtype), ids),
        logits_of(artifacts.load(name, device, how, dtype), ids),
    )
    print(f"{name}, {how}, {dtype}: {found}")  # noqa: T201  # pytest -rP shows the measurement
    assert found.within(dtype), found
    assert not found.faults, found


@pytest.mark.parametrize(
    ("device", "kind", "method"), on(artifacts.QUANTIZED, [("qwen35moe", "fp8 F32"), ("qwen35", "mlx affine 4")])
)
def test_quantized(device: torch.device, kind: str, method: str, tmp_path: Path) -> None:
    """Codes and scales of other libraries, by kernels where there are some; random weights."""
    ckpt = open_checkpoint(artifacts.write_quantized(tmp_path / "model", kind, method))
    how = "resident" if device.type == "cuda" else "loaded"
    model = load_model(ckpt, device=str(device), dtype="bfloat16", weights=how, check=False)
    ids = [5, 17, 255, 3, 99, 42, 100]
    full = device.type == "cuda"
    speculative_is_plain(
        model, ids, 24 if full else 8, KS[::2] if full else [2], SAMPLINGS[: 2 if full else 1], ["fast"]
    )
    reference = load_model(ckpt, dtype="bfloat16", weights="loaded", check=False)
    found = apart(logits_of(reference, ids), logits_of(model, ids))
    assert found.within("bfloat16"), found


@pytest.mark.parametrize(("device", "name"), on(["qwen35", "qwen35moe"], ["qwen35"]))
def test_products_that_depend_on_rows_are_seen(
    device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault put in on purpose: one bit of every product, by the number of rows."""
    model = artifacts.load(name, device, "loaded", "float32")
    linear = Arithmetic.linear

    def wrong(self: Arithmetic, x: Tensor, weight: Tensor, index: int | None = None) -> Tensor:
        return linear(self, x, weight, index) * (1 + (len(x) == 3) * 2.0**-22)

    monkeypatch.setattr(Arithmetic, "linear", wrong)
    with pytest.raises(AssertionError, match="first_difference=1"):
        speculative_is_plain(model, artifacts.prompt_of(name), 6, [2], SAMPLINGS[:1], ["fast"])


def test_near_ties_are_told_from_faults() -> None:
    """Logits with noise of a known size: a choice that noise turns is a tie, one that a fault turns is none."""
    noise = torch.Generator().manual_seed(0)
    one = 3 * torch.randn(200, 300, generator=noise)
    other = one + 1e-3 * torch.randn(200, 300, generator=noise)
    one[7, :2] = torch.tensor([50.0, 50.0005])
    other[7, :2] = torch.tensor([50.0005, 50.0])
    clean = apart(one, other)
    assert [at for at, *_ in clean.flips] == [7]
    assert clean.ties == clean.flips
    assert not clean.faults
    assert 1e-3 < clean.noise < 1e-2
    assert clean.within("bfloat16")
    assert not clean.within("float32")
    other[9] += 0.0
    other[9, one[9].argmax()] -= 5
    broken = apart(one, other)
    assert [at for at, *_ in broken.faults] == [9]
    assert not broken.within("bfloat16")
    assert "position 9" in str(broken)
    assert replace(clean, flips=[]).faults == []
