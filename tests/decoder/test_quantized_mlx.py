"""MLX checkpoints are read as the values they stand for: logits bit-equal to a float32 HF checkpoint of them.

Names and layouts are written after mlx-lm 0.32.2; `tests/interop/test_mlx_values.py` has it write them itself.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures import permutation
from mtptools.checkpoint import open_checkpoint
from tests.decoder import quantizers as q
from tests.decoder.quantized_models import every, outcome, plain, quantized, same, single_experts
from tests.decoder.quantizers import Arrays, Quantizer

MLX_METHODS: dict[str, tuple[dict[str, Any], Quantizer]] = {
    "affine 4": ({"group_size": 64, "bits": 4}, q.mlx_affine),
    "affine 3 F32": ({"group_size": 32, "bits": 3}, partial(q.mlx_affine, bits=3, group=32, kind="F32")),
    "affine 8": ({"group_size": 32, "bits": 8, "mode": "affine"}, partial(q.mlx_affine, bits=8, group=32)),
    "mxfp4": ({"group_size": 32, "bits": 4, "mode": "mxfp4"}, partial(q.mlx_floats, mode="mxfp4")),
    "mxfp8": ({"group_size": 32, "bits": 8, "mode": "mxfp8"}, partial(q.mlx_floats, mode="mxfp8")),
    "nvfp4": ({"group_size": 16, "bits": 4, "mode": "nvfp4"}, partial(q.mlx_floats, mode="nvfp4")),
}
ROUTER: tuple[dict[str, Any], Quantizer] = (
    {"group_size": 64, "bits": 8},
    partial(q.mlx_affine, bits=8, group=64),
)


def mlx_name(kind: str, name: str) -> str:
    if kind == "qwen35moe":
        name = name.replace("model.language_model.", "language_model.model.", 1)
    elif kind == "qwen35" and name.startswith("model."):
        name = f"language_model.{name}"
    return f"language_model.{name}" if name.startswith("lm_head") and kind in ("qwen35", "qwen35moe") else name


def mlx_arrays(kind: str, arrays: Arrays, config: dict[str, Any]) -> Arrays:
    """Names and layouts of mlx-lm 0.32.2 (`sanitize` of each family)."""
    out: Arrays = {}
    arrays = single_experts(arrays)
    for name, a in arrays.items():
        stem, _, last = name.partition(".mlp.experts.")
        new = mlx_name(kind, name)
        if last:
            if last.startswith("0."):
                each = last[2:]
                experts = [arrays[f"{stem}.mlp.experts.{e}.{each}"] for e in range(_experts(config))]
                out[f"{mlx_name(kind, stem)}.mlp.switch_mlp.{each}"] = np.stack(experts)
        elif name.endswith("kv_b_proj.weight"):
            heads = a.reshape(config["num_attention_heads"], -1, a.shape[-1])
            keys, values = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
            out[new.replace("kv_b_proj", "embed_q")] = np.ascontiguousarray(keys.swapaxes(1, 2))
            out[new.replace("kv_b_proj", "unembed_out")] = np.ascontiguousarray(values)
        elif name.endswith("conv1d.weight"):
            out[new] = np.ascontiguousarray(a.swapaxes(1, 2))
        elif kind in permutation.QWEN and "norm" in name and not name.endswith("linear_attn.norm.weight"):
            out[new] = a + np.float32(1)
        else:
            out[new] = a
    return out


def _experts(config: dict[str, Any]) -> int:
    text = config.get("text_config", config)
    return int(text.get("num_experts") or text["n_routed_experts"])


def back(kind: str, values: Arrays, arrays: Arrays, config: dict[str, Any]) -> Arrays:
    """Values under MLX's names as the HF checkpoint `arrays` is laid out."""
    out: Arrays = {}
    for name, a in single_experts(arrays).items():
        stem, _, last = name.partition(".mlp.experts.")
        new = mlx_name(kind, name)
        if last:
            number, _, each = last.partition(".")
            out[name] = values[f"{mlx_name(kind, stem)}.mlp.switch_mlp.{each}"][int(number)]
        elif name.endswith("kv_b_proj.weight"):
            keys = values[new.replace("kv_b_proj", "embed_q")].swapaxes(1, 2)
            both = np.concatenate([keys, values[new.replace("kv_b_proj", "unembed_out")]], axis=1)
            out[name] = np.ascontiguousarray(both).reshape(a.shape)
        elif name.endswith("conv1d.weight"):
            out[name] = np.ascontiguousarray(values[new].swapaxes(1, 2))
        elif kind in permutation.QWEN and "norm" in name and not name.endswith("linear_attn.norm.weight"):
            out[name] = values[new] - np.float32(1)
            assert (out[name] + np.float32(1) == values[new]).all()
        else:
            out[name] = values[new]
    return out


def wrapped(kind: str, config: dict[str, Any]) -> dict[str, Any]:
    """mlx-lm knows the dense model in its wrapper alone."""
    if kind != "qwen35":
        return config
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": config,
        "tie_word_embeddings": False,
    }


def source(kind: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Arrays, dict[str, Any]]:
    """A model whose every matrix MLX can quantize: 48 values a head are no group."""
    if kind == "deepseekv3":
        monkeypatch.setitem(permutation._TEXT, kind, permutation._TEXT[kind] | {"qk_nope_head_dim": 64})
    return permutation.tensors(kind), permutation.config(kind)


KINDS = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseekv3"]


@pytest.mark.parametrize(
    ("kind", "method"),
    [(kind, method) for kind in ("qwen35", "qwen35moe", "deepseekv3") for method in MLX_METHODS]
    + [(kind, method) for kind in ("qwen3next", "glm4moe") for method in ("affine 4", "mxfp4")],
)
def test_an_mlx_checkpoint_is_its_values(
    kind: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings and output matrix too; routers in 8 bits with entries of their own, as mlx-lm has them."""
    arrays, config = source(kind, monkeypatch)
    layout, quantizer = MLX_METHODS[method]
    own: dict[str, Any] = {}

    def choose(name: str, a: np.ndarray) -> Quantizer | None:
        if a.ndim < 2 or "conv1d" in name or a.shape[-1] % layout["group_size"]:
            return None
        if name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
            own[name.removesuffix(".weight")] = ROUTER[0]
            return ROUTER[1]
        if method == "affine 4" and name.endswith(("k_proj.weight", "embed_q.weight")):
            own[name.removesuffix(".weight")] = MLX_METHODS["affine 8"][0]
            return MLX_METHODS["affine 8"][1]
        return quantizer

    stored, values = quantized(mlx_arrays(kind, arrays, config), choose)
    floats = [name for name, (codec, a) in stored.items() if codec == "F32" and a.ndim > 1]
    assert {name.rsplit(".", 2)[1] for name in floats if not name.endswith((".scales", ".biases"))} <= {"conv1d"}
    stated = {**layout, **own}
    mlx = q.write(
        tmp_path / "mlx",
        stored,
        wrapped(kind, config) | {"quantization": stated, "quantization_config": stated},
        "mlx",
    )
    assert open_checkpoint(mlx).dialect == "mlx"
    hf = q.write(tmp_path / "hf", plain(back(kind, values, arrays, config)), config)
    same(outcome(mlx), outcome(hf))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("codec", ["F32", "BF16"])
def test_a_float_mlx_checkpoint(kind: str, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`1 + w` in BF16 loses bits of w: what stands in the file is what the norm multiplies by."""
    arrays, config = source(kind, monkeypatch)
    values = mlx_arrays(kind, arrays, config)
    if codec == "BF16":
        kept = ("A_log", "e_score_correction_bias")
        values = {name: a if name.endswith(kept) else q.bf16(a) for name, a in values.items()}
    stored = {name: ("F32" if name.endswith("A_log") else codec, a) for name, a in values.items()}
    stored |= {name: ("F32", a) for name, a in values.items() if name.endswith("e_score_correction_bias")}
    mlx = q.write(tmp_path / "mlx", stored, wrapped(kind, config), "mlx")
    assert open_checkpoint(mlx).dialect == "mlx"
    made = back(kind, values, arrays, config) if codec == "BF16" else single_experts(arrays)
    same(outcome(mlx), outcome(q.write(tmp_path / "hf", plain(made), config)))


def test_the_wrong_layout_is_seen(tmp_path: Path) -> None:
    """The comparison above can fail: another group size, another order of nibbles."""
    config = permutation.config("glm4moe")
    arrays = mlx_arrays("glm4moe", permutation.tensors("glm4moe"), config)
    stored, _ = quantized(arrays, every(partial(q.mlx_affine, group=64)))
    stated = config | {"quantization": {"group_size": 64, "bits": 4}}
    right = outcome(q.write(tmp_path / "right", stored, stated, "mlx"))
    turned = {
        name: (codec, a >> 4 & 0x0F0F0F0F | (a & 0x0F0F0F0F) << 4 if codec == "U32" else a)
        for name, (codec, a) in stored.items()
    }
    assert outcome(q.write(tmp_path / "turned", turned, stated, "mlx")).digests != right.digests
