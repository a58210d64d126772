"""The models that are decoded on a device: the trained fixtures, and quantized ones."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from tests.conftest import FIXTURES
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import model_of, quantized
from tests.decoder.test_quantized_mlx import MLX_METHODS, mlx_arrays, wrapped
from tests.decoder.test_quantized_trunks import METHODS

__all__ = ["FIXED", "QUANTIZED", "load", "prompt_of", "text_of", "write_quantized"]

HF = ("qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3", "deepseekv4")
GGUF = tuple(f"{name} {kind}" for name in ("qwen35", "qwen35moe") for kind in ("BF16", "Q8_0", "Q4_K"))
FIXED = (*HF, *GGUF)

QUANTIZED = (
    *((kind, method) for kind in ("qwen35moe", "glm4moe", "deepseekv3") for method in METHODS),
    *((kind, f"mlx {method}") for kind in ("qwen35", "qwen35moe") for method in MLX_METHODS),
)
"""(family, method) of models with random weights."""


def _places(name: str) -> tuple[Path, Path | None]:
    """(checkpoint, where its head is when it is elsewhere)"""
    folder, _, kind = name.partition(" ")
    whole = FIXTURES / folder / "gguf" / "model-BF16.gguf"
    if not kind:
        return FIXTURES / folder / "hf", None
    return (whole, None) if kind == "BF16" else (FIXTURES / folder / "gguf" / f"trunk-{kind}.gguf", whole)


@lru_cache(maxsize=3)
def load(name: str, device: torch.device, how: str, dtype: str) -> Model:
    """A fixture, its start-up test left out: that has a test of its own."""
    path, head = _places(name)
    beside = None if head is None else open_checkpoint(head)
    return load_model(open_checkpoint(path), head=beside, device=str(device), dtype=dtype, weights=how, check=False)


def prompt_of(name: str) -> list[int]:
    golden = np.load(FIXTURES / name.partition(" ")[0] / "golden.npz")
    return [int(token) for token in golden[min(key for key in golden if key.endswith("_ids"))]][:24]


def text_of(name: str) -> list[int]:
    """A prompt and what transformers wrote to it."""
    golden = np.load(FIXTURES / name.partition(" ")[0] / "golden.npz")
    ids = min(key for key in golden if key.endswith("_ids"))
    return [int(token) for key in (ids, ids.replace("_ids", "_greedy")) for token in golden[key]]


def write_quantized(folder: Path, kind: str, method: str) -> Path:
    if method.startswith("mlx "):
        return _mlx(folder, kind, *MLX_METHODS[method.removeprefix("mlx ")])
    stored, _ = quantized(model_of(kind), METHODS[method])
    return q.write(folder, stored, permutation.config(kind))


def _mlx(folder: Path, kind: str, layout: dict[str, Any], quantizer: q.Quantizer) -> Path:
    """Every matrix but routers, as mlx-lm names them."""

    def choose(name: str, a: np.ndarray) -> q.Quantizer | None:
        whole = a.ndim > 1 and a.shape[-1] % layout["group_size"] == 0
        router = name.endswith(("conv1d.weight", "mlp.gate.weight", "shared_expert_gate.weight"))
        return quantizer if whole and not router else None

    config = permutation.config(kind)
    stored, _ = quantized(mlx_arrays(kind, permutation.tensors(kind), config), choose)
    return q.write(folder, stored, wrapped(kind, config) | {"quantization": layout}, "mlx")
