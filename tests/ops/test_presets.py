"""The mixtures against what llama-quantize gave (fixtures/preset_types.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mtptools.ops.presets import PRESETS, Mixture, preset_type

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("presets.json").read_text())


def _blocks(text: str) -> list[int]:
    pairs = [part.split("-") for part in text.split()]
    return [block for pair in pairs for block in range(int(pair[0]), int(pair[-1]) + 1)]


@pytest.mark.parametrize("model", GOLDEN)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_matrix_of_a_model_gets_the_type_llama_quantize_gives_it(model: str, preset: str) -> None:
    golden = GOLDEN[model]
    types = {
        f"blk.{block}.{role}.weight": codec
        for role, codecs in golden["presets"][preset].items()
        for codec, blocks in codecs.items()
        for block in _blocks(blocks)
    }
    if preset == "IQ2_M":  # more for the first matrices of a file: not a head's
        types = {name: codec for name, codec in types.items() if not ("ffn_down" in name and codec == "IQ3_S")}
        types |= {name: "IQ2_S" for name in types if "ffn_down" in name}
    mixture = Mixture.of(types, golden["blocks"], golden["groups"], golden["experts"])
    ours = {name: preset_type(preset, name, 3 if "_exps" in name else 2, mixture) for name in types}
    assert ours == types
