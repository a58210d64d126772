"""Packed matrices and models of random values, made where they are used: real shapes, no file.

Shapes are those of the recorded facts of releases (`fixtures/releases`). Values are such that every matrix keeps the
size of what it is multiplied with: logits stay finite, and mean nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtptools.checkpoint import Checkpoint
from mtptools.codecs import CODECS
from mtptools.decoder.ahead import ahead
from mtptools.decoder.build import Builder
from mtptools.decoder.kernels.layouts import KINDS, Slab
from mtptools.decoder.load import family_wiring
from mtptools.decoder.model import Model, recording
from mtptools.decoder.offload import Offloaded
from mtptools.decoder.ops import Arithmetic, exact_settings
from mtptools.decoder.packed import Weight
from mtptools.decoder.parts import Part, Scope
from mtptools.decoder.resident import Resident, kernels
from mtptools.decoder.settings import read_settings
from mtptools.views import computed

__all__ = ["MODELS", "Make", "bytes_per_token", "config_of", "copied_per_token", "floats", "loaded", "model_of"]
__all__ += ["nowhere", "packed", "remembered", "shapes_of", "slab"]

RELEASES = Path(__file__).parents[1] / "fixtures" / "releases"
MODELS = {"27B": "qwen3.5-27b", "35B-A3B": "qwen3.5-35b-a3b"}

TOY = {
    "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
    "vocab_size": 256, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}  # fmt: skip
"""Sizes for a machine without a GPU."""

Make = Callable[[tuple[int, ...]], Weight]
"""A matrix [N, K] or stack [n, N, K] of random values."""


def config_of(name: str, layers: int = 0, *, toy: bool = False) -> dict[str, Any]:
    """config.json of a release; of its first layers alone, where their number is given. toy: tiny, of two layers."""
    config: dict[str, Any] = json.loads((RELEASES / f"{MODELS[name]}.json").read_text(encoding="utf-8"))["config"]
    text = dict(config["text_config"])
    kinds = [kind for run in text["layer_types"] for kind in run["of"] * run["repeat"]]
    if toy:
        text |= {key: value for key, value in TOY.items() if key in text}
        text["rope_parameters"] = text["rope_parameters"] | {"mrope_section": [2, 1, 1]}
        kinds = kinds[2:4]
    text["layer_types"] = kinds[:layers] if layers else kinds
    text["num_hidden_layers"] = len(text["layer_types"])
    return config | {"text_config": text}


class _Nothing:
    """A source of tensors that are never read."""

    head_depth, sidecar, where = 1, False, Path("random")

    def __init__(self, query_rows: int) -> None:
        self.query_rows = query_rows

    def vocabulary(self) -> None:
        return None

    def has(self, scope: Scope, role: str) -> bool:
        return False

    def parts(self, scope: Scope, role: str) -> list[Part]:
        rows = self.query_rows if role == "query" else 1
        return [Part.whole(computed(role, (rows, 1), "F32", _unread))]

    def gguf_names(self, scope: Scope, role: str) -> tuple[str, ...]:
        return ()

    def leftover(self, kind: str) -> list[str]:
        return []


def _unread(start: int, stop: int) -> np.ndarray:
    raise AssertionError("a random model has no file")


class _Random(Builder):
    """The decoder's own builder, with matrices of `make` and vectors that do no harm."""

    make: Make

    def weight(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Weight:
        return self.make(shape)

    def vector(self, scope: Scope, role: str, size: int) -> Tensor:
        value = {"delta_decay": -1.0, "delta_dt": 0.0}.get(role, 1.0)
        return torch.full((size,), value, device=self.device)

    def new(self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if parts[0].tensor.name == "query_norm":
            return torch.ones(shape, device=self.device)
        return nowhere(shape) if self.make is nowhere else floats(shape, dtype, self.device)


def nowhere(shape: tuple[int, ...]) -> Tensor:
    """A `Make` for models of which only shapes are asked."""
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def model_of(
    config: dict[str, Any],
    device: torch.device,
    make: Make,
    *,
    dtype: torch.dtype = torch.bfloat16,
    arithmetic: Arithmetic | None = None,
    layers: Make | None = None,
) -> Model:
    """A model with its head.

    arithmetic  another one than the exact one of the device;  layers  makes the trunk's layers and the embedding
    """
    exact_settings()
    ckpt = Checkpoint(Path("random"), "safetensors", "hf", (), {}, config=config)
    hp = ckpt.hparams
    source = _Nothing(2 * hp.n_heads * hp.head_dim)
    builder = _Random(source, hp, read_settings(ckpt), device, dtype)  # type: ignore[arg-type]
    builder.make = make
    builder.arithmetic = arithmetic or builder.arithmetic
    if layers is not None:
        other = copy(builder)
        other.make = layers
        builder.layers = [other] * hp.n_layers
    with torch.inference_mode():
        trunk = ahead(builder.trunk())
        head = builder.head(trunk, family_wiring(ckpt))
    model = Model(ckpt.path, hp, trunk, head, 1, dtype, builder.arithmetic)
    return recording(model) if device.type == "cuda" else model


def shapes_of(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """(what, shape) of every kind of product that a token's pass makes; of experts [n, N, K]."""
    model = model_of(config, torch.device("cpu"), nowhere)
    found: dict[tuple[str, tuple[int, ...]], None] = {}
    for block in model.trunk.blocks:
        stacks = getattr(getattr(block, "ffn", None), "weights", None)
        for what, weight in block.matrices():
            if what.startswith("expert ") and stacks is not None:
                weight = stacks.down if what.endswith("down") else stacks.gate_up
            if what != "router":
                found[what, tuple(weight.shape)] = None
    return [*found, ("output", tuple(model.trunk.output.shape))]


def bytes_per_token(model: Model) -> int:
    """Of the weights that one row's pass reads: all matrices, of experts those that are used, and the output matrix."""
    used = model.hparams.n_experts_used
    layers = [pair for block in model.trunk.blocks for pair in block.matrices()]
    of_layers = sum(int(weight.nbytes) * (used if what.startswith("expert ") else 1) for what, weight in layers)
    return of_layers + int(model.trunk.output.nbytes)


def copied_per_token(model: Model) -> int:
    """Bytes that a row's pass brings to the device: matrices of off-loaded layers, of experts those that are used."""
    used = model.hparams.n_experts_used
    found = [pair for block in model.trunk.blocks for pair in block.matrices() if isinstance(pair[1], Offloaded)]
    return sum(int(weight.nbytes) * (used if what.startswith("expert ") else 1) for what, weight in found)


def floats(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device).normal_(std=shape[-1] ** -0.5)


def loaded(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Make:
    return lambda shape: floats(shape, dtype, device)


def packed(kind: str, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Make:
    return lambda shape: Resident((slab(kind, prod(shape[:-1]), shape[-1], device),), shape, dtype)


def remembered(make: Make) -> Callable[[], Make]:
    """For models of the same shapes that share their weights: each call starts from the first one again."""
    made: list[Weight] = []

    def start() -> Make:
        at = iter(range(1 << 30))

        def again(shape: tuple[int, ...]) -> Weight:
            number = next(at)
            if number == len(made):
                made.append(make(shape))
            assert tuple(made[number].shape) == shape
            return made[number]

        return again

    return start


def slab(kind: str, n: int, k: int, device: torch.device) -> Slab:
    """Random codes; scales such that values are about as large as 1 / sqrt(k), where scales are float16."""
    made = Slab(kind, tuple(_planes(kind, n, k, device)), (n, k), _GROUPS.get(kind, 0))
    if not any(plane.dtype == torch.float16 for plane in made.planes) or kind == "F16":
        return made
    size = kernels().values(made.rows(0, min(n, 16)), torch.float32).square().mean().sqrt()
    by = float(k**-0.5 / size) if float(size) > 0 else 1.0
    planes = (plane * by if plane.dtype == torch.float16 else plane for plane in made.planes)
    return replace(made, planes=tuple(planes))


_GROUPS = {"F8_BLOCK": 128, "MLX_4": 64, "MLX_8": 64}

_APART = {
    "F8_BLOCK": (("codes", 1.0), ("float32", 1 / 128)),
    "FP4_E8M0": (("exponents", 1 / 32), ("codes", 0.5)),
    "MLX_4": (("bfloat16", 1 / 64), ("bfloat16", 1 / 64), ("codes", 0.5)),
    "MLX_8": (("bfloat16", 1 / 64), ("bfloat16", 1 / 64), ("codes", 1.0)),
}
"""Planes of kinds whose codes and scales a file keeps apart: what, and how many for a value."""


def _planes(kind: str, n: int, k: int, device: torch.device) -> list[Tensor]:
    if kind in _APART:
        return [_plane(what, n, -(-int(k * share * 128) // 128), device) for what, share in _APART[kind]]
    if kind in ("F32", "F16"):
        return [floats((n, k), KINDS[kind].fields[0][1], device)]
    if kind == "BF16":
        return [floats((n, k), torch.bfloat16, device).view(torch.int16)]
    blocks, planes = k // CODECS[kind].block_values, []
    for n_bytes, dtype in KINDS[kind].fields:
        if dtype == torch.float16:
            # of a scale and a minimum the second is what takes the mean away, of codes of four bits
            plane = torch.full((n, blocks), 0.001, device=device) * (1 if not planes else 7.5)
            planes.append((plane * torch.empty_like(plane).uniform_(0.9, 1.1)).half())
        else:
            planes.append(_plane("codes", n, blocks * n_bytes, device).view(dtype))
    return planes


def _plane(what: str, n: int, width: int, device: torch.device) -> Tensor:
    if what == "codes":
        return torch.randint(0, 256, (n, width), dtype=torch.uint8, device=device)
    if what == "exponents":
        return torch.randint(110, 118, (n, width), dtype=torch.uint8, device=device)
    return torch.empty((n, width), device=device).normal_(std=1e-3).to(getattr(torch, what))
