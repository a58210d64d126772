"""The two sides of benchmarks/decoder.py compute the same, but for rounding: times of two models are no ratio."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the decoder extra is not installed")
pytest.importorskip("transformers", reason="the dev extra is not installed")

import torch
import transformers

from benchmarks import decoder_models, plain_products
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model

pytestmark = [pytest.mark.filterwarnings("default")]
IDS = [(7 * n + 3) % 1000 for n in range(70)]
FOLDER = Path(__file__).parents[1] / "fixtures" / "qwen35" / "hf"


def logits(model: Model) -> torch.Tensor:
    """Of a prompt, of one row after it, and of four rows that are taken back."""
    with torch.inference_mode():
        cache = model.trunk.new_cache()
        parts = [model.trunk.forward(IDS[:64], cache), model.trunk.forward(IDS[64:65], cache)]
        cache.start()
        parts.append(model.trunk.forward(IDS[66:70], cache))
        cache.rollback(65)
        parts.append(model.trunk.forward(IDS[65:69], cache))
        return torch.cat([model.trunk.logits(part) for part in parts])


@pytest.fixture(scope="module")
def exact() -> Model:
    return load_model(open_checkpoint(FOLDER), check=False)


@pytest.mark.parametrize("parts", [*((part,) for part in plain_products.PARTS), plain_products.PARTS])
def test_plain_products_are_the_same_model(exact: Model, parts: tuple[str, ...]) -> None:
    wanted = logits(exact)
    with plain_products.swapped(parts):
        got = logits(exact)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)
    assert torch.equal(logits(exact), wanted), "what was swapped is back"


def test_model_in_memory_is_the_one_on_disk(exact: Model) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    ours = load_model(decoder_models.in_memory(theirs, theirs.config.to_dict()), check=False)
    assert torch.equal(logits(ours), logits(exact))


def test_shapes_of_the_release() -> None:
    """Of all of Qwen3.5-0.8B-Base's parameters, its image tower's and its head's left out."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(decoder_models._config())
    assert model.config.vocab_size == 248320
    assert sum(p.numel() for p in model.parameters()) == 752_393_024
