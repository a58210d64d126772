"""Weights left as they are stored give the bits that loaded ones give, and hold no matrix in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import memory
from mtptools.decoder.load import load_model
from mtptools.decoder.memory import plan_memory
from mtptools.decoder.model import Model
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Packed
from mtptools.decoder.parity import compare
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.errors import SystemFailure

ROOT = Path(__file__).parents[2] / "fixtures"
PROMPT = [5, 900, 33, 7, 1200, 18]


def loaded_matrices(model: Model) -> list[str]:
    """Names of the large weights that are tensors in memory."""
    assert model.head is not None
    layers = [*model.trunk.blocks, *(layer.block for layer in model.head.layers)]
    found = {"embed": model.trunk.embed, "output": model.trunk.output}
    for layer in layers:
        found |= {name: weight for name, weight in layer.matrices() if not name.startswith(("router", "expert"))}
        weights = getattr(layer.ffn, "weights", None)
        found |= {"experts": weights.gate_up, "experts down": weights.down} if hasattr(weights, "router") else {}
    return [name for name, weight in found.items() if isinstance(weight, torch.Tensor)]


@pytest.mark.parametrize("kind", ["qwen35", "qwen3next", "glm4moe", "deepseekv3"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_bits_are_loaded_bits(kind: str, dtype: str, tmp_path: Path) -> None:
    permutation.build(kind, tmp_path, dtype="BF16")
    ckpt = open_checkpoint(tmp_path)
    loaded, packed = (load_model(ckpt, dtype=dtype, weights=how, check=False) for how in ("loaded", "stored"))
    plain = decode_plain(loaded, PROMPT, 6)
    assert compare(plain, decode_plain(packed, PROMPT, 6)).equal
    assert compare(plain, decode_speculative(packed, PROMPT, 6, 2)).equal
    assert loaded_matrices(packed) == []
    assert len(loaded_matrices(loaded)) >= 6


def test_packed_gguf_of_a_trained_model() -> None:
    trunk, head = (open_checkpoint(ROOT / "qwen35moe/gguf" / f"{name}.gguf") for name in ("trunk-Q4_K", "model-BF16"))
    loaded, packed = (load_model(trunk, head=head, weights=how) for how in ("loaded", "stored"))
    assert isinstance(packed.trunk.embed, Packed)
    assert compare(decode_plain(loaded, PROMPT, 4), decode_speculative(packed, PROMPT, 4, 1)).equal


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    permutation.build("qwen35", tmp_path, dtype="BF16")
    return tmp_path


def test_what_does_not_fit_is_packed(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = open_checkpoint(tiny)
    needed = plan_memory(ckpt, None, [torch.device("cpu")], "float32", weights="loaded").devices[0].needed
    free: Callable[[torch.device], int]
    for free, kind in ((lambda device: needed, torch.Tensor), (lambda device: needed - 1, Packed)):
        monkeypatch.setattr(memory, "free_memory", free)
        assert isinstance(load_model(ckpt, check=False).trunk.embed, kind)


def test_a_matrix_that_does_not_fit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000)
    with pytest.raises(SystemFailure, match=r"does not fit: .* weights at work"):
        load_model(open_checkpoint(tiny))


@pytest.mark.parametrize(("rows", "cols"), [(1048, 1000), (1040, 1008), (4096, 256), (4100, 256)])
def test_loaded_and_packed_products_take_the_same_blocks(rows: int, cols: int) -> None:
    """Around one block of rows: what is multiplied at a time must not depend on how a weight is held."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn((rows, cols), generator=generator), torch.randn((3, cols), generator=generator)
    ops, seen = Arithmetic.on(torch.device("cpu")), []

    class Held(Packed):
        def __getitem__(self, index: int | slice | torch.Tensor) -> torch.Tensor:
            seen.append(index)
            return weight[index]

    packed = Held((), (rows, cols), torch.float32, torch.device("cpu"), "here")
    assert torch.equal(ops.logits(x, packed), ops.logits(x, weight))
    assert seen
