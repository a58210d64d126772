"""Trained fixtures as quantized releases with a float head, written without a line of the code under test."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.codecs import decode
from mtptools.head import head_names
from tests.conftest import FIXTURES
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import is_matrix, single_experts
from tests.decoder.quantizers import Arrays, Quantizer, Stored
from tests.decoder.test_quantized_mlx import mlx_arrays, wrapped

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
W4A16 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "actorder": None}
NVFP4A16 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}

# The head's modules, left out: what stands in the list of a release whose head is float.
OUT = {
    "qwen35": ("mtp.layers.0", "mtp.fc"),
    "qwen35moe": ("mtp.layers.0", "mtp.fc"),
    "qwen3next": ("mtp.layers.0", "mtp.fc"),
    "glm4moe": ("model.layers.3",),
    "deepseekv3": ("model.layers.3", "model.layers.4"),
}


def compressed(weights: dict[str, Any], form: str, **group: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, **group}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


# method -> what makes a matrix, and the quantization_config
METHODS: dict[str, tuple[Quantizer, dict[str, Any]]] = {
    "fp8": (q.fp8, FP8),
    "fp8 BF16": (partial(q.fp8, kind="BF16"), FP8),
    "int4": (partial(q.integers, group=32, kind="BF16"), compressed(W4A16, "pack-quantized")),
    "nvfp4": (partial(q.nvfp4, library="compressed-tensors"), compressed(NVFP4A16, "nvfp4-pack-quantized")),
    "modelopt": (partial(q.nvfp4, library="modelopt"), {"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}),
}


def _arrays(source: Checkpoint) -> Arrays:
    return {name: decode(tensor).reshape(tensor.shape) for name, tensor in source.items()}


def _excluded(family: str, method: str, head: list[str]) -> dict[str, Any]:
    if method.startswith("fp8"):
        names = {name.partition(".experts")[0] + ".experts" * (".experts" in name) for name in head}
        linear = {name.removesuffix(".weight") for name in names}
        return {"modules_to_not_convert": sorted(n for n in linear if n.endswith(("_proj", ".fc", ".experts", "_mqa")))}
    if method == "modelopt":
        return {"ignore": ["lm_head", *(f"{start}*" for start in OUT[family])]}
    return {"ignore": ["lm_head", *(f"re:.*{start.replace('.', chr(92) + '.')}.*" for start in OUT[family])]}


def trunk(family: str, method: str, out: Path, **stated: Any) -> Checkpoint:
    """A release of `method` whose head is BF16; `stated` goes into its quantization_config."""
    source = open_checkpoint(FIXTURES / family / "hf")
    head = set(head_names(source))
    arrays = _arrays(source)
    quantizer, config = METHODS[method]
    stored: Stored = {}
    for name, a in single_experts({name: a for name, a in arrays.items() if name not in head}).items():
        if not is_matrix(name, a):
            stored[name] = (source[name].codec, a)
            continue
        stem = name.removesuffix(".weight")
        parts = {part: pair for part, pair in quantizer(a)[0].items() if "input" not in part}
        stored |= {f"{stem if part.startswith('.') else name}{part}": pair for part, pair in parts.items()}
    stored |= {name: (source[name].codec, arrays[name]) for name in source if name in head}
    quant = {**config, **_excluded(family, method, sorted(head)), **stated}
    return _written(family, out, stored, {**source.config, "quantization_config": quant}, "pt")


def mlx(family: str, out: Path, **layout: Any) -> Checkpoint:
    """What mlx-lm would hold, with a float head; `layout` of an affine quantized trunk."""
    source = open_checkpoint(FIXTURES / family / "hf")
    arrays = mlx_arrays(family, _arrays(source), source.config)
    config = wrapped(family, source.config)
    config = {**config, "tie_word_embeddings": source.config["tie_word_embeddings"]}
    stored: Stored = {}
    for name, a in arrays.items():
        if layout and is_matrix(name, a) and not name.startswith("mtp."):
            stem = name.removesuffix(".weight")
            parts = q.mlx_affine(a, bits=layout["bits"], group=layout["group_size"])[0]
            stored |= {f"{stem if part.startswith('.') else name}{part}": pair for part, pair in parts.items()}
        else:
            stored[name] = ("F32" if name.endswith("A_log") else "BF16", a)
    if layout:
        config = {**config, "quantization": layout, "quantization_config": layout}
    return _written(family, out, stored, config, "mlx")


def _written(family: str, out: Path, stored: Stored, config: dict[str, Any], kind: str) -> Checkpoint:
    q.write(out, stored, config, kind)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / family / "hf" / name, out)
    return open_checkpoint(out)


def prompts(family: str) -> list[list[int]]:
    tree = json.loads((FIXTURES / family / "prompts.json").read_text())
    return [list(prompt["ids"]) for prompt in tree["prompts"][:3]]
