"""Room for quantized weights is asked for by their values, and a head's own copy of a matrix takes none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.estimate import estimate
from mtptools.decoder.load import load_model
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import model_of, plain, quantized
from tests.decoder.test_quantized_trunks import METHODS


@pytest.mark.parametrize("method", ["int4 by 32, zero points", "nvfp4 modelopt", "fp8 F32"])
def test_memory_is_that_of_the_values(method: str, tmp_path: Path) -> None:
    """Codes are packed, two to eight a number."""
    stored, values = quantized(model_of("glm4moe"), METHODS[method])
    config = permutation.config("glm4moe")
    ours = open_checkpoint(q.write(tmp_path / "quantized", stored, config))
    theirs = open_checkpoint(q.write(tmp_path / "values", plain(values), config))
    sizes = [estimate(one, None, torch.bfloat16).whole.of("loaded") for one in (ours, theirs)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("same", [True, False])
def test_a_heads_own_matrices(same: bool, tmp_path: Path) -> None:
    """V3's heads ship copies of the trunk's: one is held. One that differs in its last value is its own."""
    arrays = dict(model_of("deepseekv3"))
    name = next(name for name in arrays if name.endswith("layers.2.embed_tokens.weight"))
    if not same:
        arrays[name] = arrays[name].copy()
        arrays[name][-1, -1] += 1
    folder = q.write(tmp_path / "m", plain(arrays), permutation.config("deepseekv3"))
    model = load_model(open_checkpoint(folder), check=False)
    assert model.head is not None
    assert (model.head.layers[0].embed is model.trunk.embed) == same
