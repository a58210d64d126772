"""Quantized trunks and heads are read as the values they stand for: logits bit-equal to a float32 checkpoint of them.

The values are computed where the codes are made (`quantizers.py`), by torch and plain numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.codecs import decode
from mtptools.decoder.trace import Trace
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import every, is_matrix, model_of, outcome, plain, quantized, same, single_experts
from tests.decoder.quantizers import Quantizer


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trace]:
    """What the unquantized model of a kind answers."""

    @cache
    def made(kind: str) -> Trace:
        folder = tmp_path_factory.mktemp("before") / kind
        return outcome(q.write(folder, plain(model_of(kind)), permutation.config(kind)))

    return made


def fp4_experts(name: str, a: np.ndarray) -> Quantizer | None:
    """As DeepSeek-V4: experts in FP4, the rest in FP8."""
    if not is_matrix(name, a):
        return None
    return q.fp4 if ".experts." in name else partial(q.fp8, kind="F8_E8M0", suffix="_scale_inv")


METHODS: dict[str, Callable[[str, np.ndarray], Quantizer | None]] = {
    "fp8 F32": every(q.fp8),
    "fp8 BF16": every(partial(q.fp8, kind="BF16")),
    "fp8 E8M0": every(partial(q.fp8, kind="F8_E8M0")),
    "fp8 by row": every(q.fp8_channel),
    "fp4 experts": fp4_experts,
    "nvfp4 modelopt": every(partial(q.nvfp4, library="modelopt")),
    "nvfp4 compressed-tensors": every(partial(q.nvfp4, library="compressed-tensors")),
    "int4 by 32": every(partial(q.integers, group=32)),
    "int4 by 32, zero points": every(partial(q.integers, group=32, symmetric=False)),
    "int4 by 64, reordered": every(partial(q.integers, group=64, reorder=True)),
    "int8 packed": every(partial(q.integers, bits=8)),
    "int8": every(q.int8),
}


@pytest.mark.parametrize("kind", ["qwen35moe", "glm4moe", "deepseekv3"])
@pytest.mark.parametrize("method", METHODS)
def test_a_release_is_its_values(kind: str, method: str, tmp_path: Path, before: Callable[[str], Trace]) -> None:
    """Trunk and head, experts one by one, as these methods leave them."""
    stored, values = quantized(model_of(kind), METHODS[method])
    assert len(stored) > 1.5 * len(values)
    config = permutation.config(kind)
    ours = outcome(q.write(tmp_path / "quantized", stored, config))
    same(ours, outcome(q.write(tmp_path / "values", plain(values), config)))
    assert ours.digests != before(kind).digests


@pytest.mark.parametrize("kind", ["qwen35", "qwen3next"])
@pytest.mark.parametrize("method", ["fp8 F32", "nvfp4 modelopt", "int4 by 32, zero points"])
def test_other_families(kind: str, method: str, tmp_path: Path) -> None:
    stored, values = quantized(model_of(kind), METHODS[method])
    config = permutation.config(kind)
    same(
        outcome(q.write(tmp_path / "quantized", stored, config)),
        outcome(q.write(tmp_path / "values", plain(values), config)),
    )


def test_fused_experts_with_scales_of_their_own(tmp_path: Path) -> None:
    """`experts.gate_up_proj` [n, 2F, hidden] in FP8, its scales `experts.gate_up_proj_scale_inv`."""
    config = permutation.config("qwen35moe")
    stored, values = quantized(permutation.tensors("qwen35moe"), METHODS["fp8 F32"])
    assert any(name.endswith("experts.gate_up_proj_scale_inv") for name in stored)
    same(
        outcome(q.write(tmp_path / "quantized", stored, config)),
        outcome(q.write(tmp_path / "values", plain(values), config)),
    )


@pytest.mark.parametrize("method", ["fp8 F32", "int4 by 32, zero points", "nvfp4 modelopt"])
def test_packed_matrices_give_the_same_bits(method: str, tmp_path: Path) -> None:
    """Codes left in the file and decoded at every use; also in BF16, where values are rounded once."""
    stored, values = quantized(model_of("qwen35moe"), METHODS[method])
    config = permutation.config("qwen35moe")
    ours = q.write(tmp_path / "quantized", stored, config)
    same(outcome(ours, weights="stored"), outcome(ours))
    theirs = q.write(tmp_path / "values", plain(values), config)
    same(outcome(ours, "bfloat16"), outcome(theirs, "bfloat16"))


@pytest.mark.parametrize("method", ["fp8 E8M0", "int4 by 32, zero points", "nvfp4 compressed-tensors"])
def test_trained_fixtures(method: str, trained: Path, tmp_path: Path) -> None:
    """Tied embeddings in the dense one; the wrapper's names in the other. The text stays that of the values."""
    ckpt = open_checkpoint(trained / "hf")
    arrays = single_experts({name: decode(tensor).reshape(tensor.shape) for name, tensor in ckpt.items()})
    stored, values = quantized(arrays, METHODS[method])
    same(
        outcome(q.write(tmp_path / "quantized", stored, ckpt.config)),
        outcome(q.write(tmp_path / "values", plain(values), ckpt.config)),
    )


def test_bf16_scales_of_integers(tmp_path: Path) -> None:
    """Kimi-K2's int4. The library rounds to the scales' type; here the one rounding is into the model's."""
    config, method = permutation.config("deepseekv3"), every(partial(q.integers, group=32, kind="BF16"))
    stored, values = quantized(model_of("deepseekv3"), method)
    rounded = {name: q.bf16(a) if is_matrix(name, a) else a for name, a in values.items()}
    ours, theirs = q.write(tmp_path / "q", stored, config), q.write(tmp_path / "v", plain(rounded), config)
    same(outcome(ours, "bfloat16"), outcome(theirs, "bfloat16"))
    assert outcome(ours).digests != outcome(theirs).digests


def test_blocks_of_another_size(tmp_path: Path) -> None:
    config = permutation.config("glm4moe")
    stored, values = quantized(permutation.tensors("glm4moe"), every(partial(q.fp8, block=64)))
    stated = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}
    same(
        outcome(q.write(tmp_path / "quantized", stored, stated)),
        outcome(q.write(tmp_path / "values", plain(values), config)),
    )
