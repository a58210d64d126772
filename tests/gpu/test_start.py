"""What happens before the first token: the self-test, memory that runs out, and what a report says of the device."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import parts, selftest
from mtptools.decoder.load import load_model
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.report import fingerprint
from mtptools.decoder.resident import Resident
from mtptools.errors import SystemFailure
from tests.conftest import FIXTURES
from tests.gpu import artifacts
from tests.gpu.cases import on

Command = Callable[..., tuple[int, str, str]]

WAYS = [
    (name, how, dtype)
    for name in artifacts.FIXED
    for how in ("resident", "loaded")
    for dtype in ("bfloat16", "float32")
]


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shape has passed yet."""
    monkeypatch.setattr(selftest, "_PASSED", set())


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize(("device", "name", "how", "dtype"), on(WAYS, [("qwen35", "loaded", "bfloat16")]))
def test_self_test_passes(device: torch.device, name: str, how: str, dtype: str) -> None:
    model = artifacts.load(name, device, how, dtype)
    with torch.inference_mode():
        selftest.self_test(model)
    tried = {key for key in selftest._PASSED if key[0] in (True, False)}
    assert {key[3].type for key in tried} == {device.type}
    assert any(key[0] for key in tried), "the output matrix was not tried"


def by_rows(x: Tensor) -> float:
    return 1 + (len(x) > 4) * 2.0**-20


def plant(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Makes products of more than four rows others, one bit or two."""
    if how == "resident":
        product = Resident.product
        monkeypatch.setattr(Resident, "product", lambda self, x, dtype: product(self, x, dtype) * by_rows(x))
        return
    linear, logits = Arithmetic.linear, Arithmetic.logits
    monkeypatch.setattr(Arithmetic, "linear", lambda self, x, w, index=None: linear(self, x, w, index) * by_rows(x))
    monkeypatch.setattr(Arithmetic, "logits", lambda self, x, w: logits(self, x, w) * by_rows(x))


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize(("device", "how"), on(["resident", "loaded"], ["loaded"]))
def test_a_dependence_on_the_number_of_rows_is_refused(
    device: torch.device, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape, the type, and the first row that moved are named."""
    plant(monkeypatch, how)
    ckpt = open_checkpoint(FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf")
    with pytest.raises(SystemFailure, match=rf"output \[2048, 256\] .* on {device}: row 0 of 5 has other bits") as told:
        load_model(ckpt, device=str(device), dtype="bfloat16", weights=how)
    assert told.value.exit_code == 7
    assert told.value.hint


ROOM = 4 << 20
"""Bytes that are left: small tensors go in, a matrix does not, for which torch takes 20 MiB."""


@contextmanager
def full(device: torch.device) -> Iterator[None]:
    """A card of which this process may take little more than it has; others that use it are left alone."""
    artifacts.load.cache_clear()
    gc.collect()
    torch.cuda.empty_cache()
    most = torch.cuda.memory_reserved(device) + ROOM
    torch.cuda.set_per_process_memory_fraction(most / torch.cuda.get_device_properties(device).total_memory, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@contextmanager
def refusing(after: int) -> Iterator[None]:
    """As a card does that is full after so many tensors."""
    fill, left = parts.fill, iter(range(after))

    def limited(*arguments: Any) -> None:
        if next(left, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 MiB. GPU 0 has a total capacity")
        fill(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "fill", limited)
        yield


@pytest.mark.parametrize(("device", "name"), on(["qwen35", "qwen35moe"], ["qwen35moe"]))
def test_out_of_memory(device: torch.device, name: str, command: Command) -> None:
    """Half-way through loading: what was needed, what is free, what to do; and afterwards it works."""
    line = ("generate", FIXTURES / name / "hf", "-p", "The", "--tokens", 3, "--device", device)
    with full(device) if device.type == "cuda" else refusing(12):
        code, out, err = command(*line)
    assert code == 7, err
    assert "Traceback" not in err
    for said in ("out of memory", "more were needed", f"free on {device}"):
        assert said in err, err
    assert not out
    code, out, err = command(*line)
    assert (code, bool(out)) == (0, True), err


@pytest.mark.parametrize(("device", "how"), on(["resident", "offloaded"], ["resident"]))
def test_fingerprint(device: torch.device, how: str) -> None:
    """Everything that the bits may depend on."""
    found = fingerprint(artifacts.load("qwen35", device, how, "bfloat16"))
    assert found["torch"] == torch.__version__
    assert found["weights"] == [how]
    assert found["tiles"].keys() >= {"Q4_K", "BF16"}
    assert len(found["tiles_digest"]) == 64
    assert found["triton"]
    assert found["interpreted"] is (device.type == "cpu")
    if device.type == "cuda":
        assert found["gpu"] == torch.cuda.get_device_name(device)
        assert found["capability"]
        assert found["cuda"] == torch.version.cuda
        assert found["driver"]
    else:
        assert "gpu" not in found
