"""Large synthetic GGUF files with the metadata and the shapes of a real model, for timing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from mtptools.codecs import CODECS
from mtptools.containers.gguf import Metadata, header_bytes, padded
from mtptools.containers.gguf_values import array_value, scalar_value, string_value
from mtptools.families import Role, family_named
from mtptools.hparams import HParams
from mtptools.tensors import Blob, Tensor

ALIGNMENT = 32

# Qwen3.5-27B's shapes (config.json of the release); the number of layers is chosen by size.
HPARAMS = HParams(
    family="qwen35", hidden_size=5120, n_layers=64, depth=0, vocab_size=248320, n_heads=24, n_kv_heads=4,
    head_dim=256, intermediate_size=17408, n_experts=0, n_experts_used=0, moe_intermediate_size=0,
    shared_expert_intermediate_size=0, norm_eps=1e-6, rope_theta=1e7, rope_dim=64, context_length=262144,
    tie_embeddings=False, layer_types=(), conv_kernel=4, linear_k_heads=16, linear_v_heads=48,
    linear_k_head_dim=128, linear_v_head_dim=128,
)  # fmt: skip


def metadata(n_layers: int, depth: int, n_tokens: int) -> Metadata:
    """What llama.cpp's converter writes for this family, with a vocabulary of `n_tokens` and as many merges."""
    h, arch = HPARAMS, "qwen35"
    sizes = {
        "block_count": n_layers + depth, "context_length": h.context_length, "embedding_length": h.hidden_size,
        "feed_forward_length": h.intermediate_size, "attention.head_count": h.n_heads,
        "attention.head_count_kv": h.n_kv_heads, "attention.key_length": h.head_dim,
        "attention.value_length": h.head_dim, "rope.dimension_count": h.rope_dim, "ssm.conv_kernel": h.conv_kernel,
        "ssm.state_size": h.linear_k_head_dim, "ssm.group_count": h.linear_k_heads,
        "ssm.time_step_rank": h.linear_v_heads, "ssm.inner_size": h.linear_v_heads * h.linear_v_head_dim,
        "full_attention_interval": 4,
    }  # fmt: skip
    tokens = [f"tok{i:06d}" for i in range(n_tokens)]
    values = {"general.architecture": string_value(arch)}
    values |= {f"{arch}.{key}": scalar_value("u32", value) for key, value in sizes.items()}
    values |= {
        f"{arch}.attention.layer_norm_rms_epsilon": scalar_value("f32", h.norm_eps),
        f"{arch}.rope.freq_base": scalar_value("f32", h.rope_theta),
        f"{arch}.rope.dimension_sections": array_value("i32", [11, 11, 10, 0]),
        "tokenizer.ggml.model": string_value("gpt2"),
        "tokenizer.ggml.tokens": array_value("string", tokens),
        "tokenizer.ggml.token_type": array_value("i32", [1] * n_tokens),
        "tokenizer.ggml.merges": array_value("string", [f"t {i}" for i in range(n_tokens)]),
    }
    if depth:
        values[f"{arch}.nextn_predict_layers"] = scalar_value("u32", depth)
    return Metadata(values)


def tensors(n_layers: int, depth: int, codec: str, vocab: int) -> list[Tensor]:
    """Tensors of trunk and head; matrices in `codec`, the rest in F32."""
    family = family_named("qwen35")
    sizes = replace(HPARAMS, vocab_size=vocab).size
    kinds = ["full" if (n + 1) % 4 == 0 else "linear" for n in range(n_layers)]
    named: list[tuple[str, Role]] = [(role.name, role) for role in family.trunk["all"]]
    named += [(f"blk.{n}.{role.name}", role) for n, kind in enumerate(kinds) for role in family.trunk[kind]]
    named += [(f"blk.{n_layers + d}.{r.name}", r) for d in range(depth) for r in family.head if r.required]
    out = []
    for name, role in named:
        shape = tuple(sizes(size) for size in role.shape)
        kind = codec if role.kind in ("matrix", "embedding", "output") and len(shape) > 1 else "F32"
        rows = 1
        for size in shape[:-1]:
            rows *= size
        out.append(Tensor(name, shape, kind, (Blob(Path(), 0, rows * CODECS[kind].row_bytes(shape[-1])),)))
    return out


def write(path: Path, n_layers: int, depth: int, codec: str, *, n_tokens: int = 248_000, vocab: int = 248_320) -> int:
    """Write the file with random blocks whose scales are finite, and norms of 1; return its size."""
    listed = tensors(n_layers, depth, codec, vocab)
    noise = {
        codec: bytes(np.frombuffer(os.urandom(16 << 20), np.uint8) & 0x3B),
        "F32": np.ones(4 << 20, "<f4").tobytes(),
    }
    with open(path, "wb") as file:
        file.write(header_bytes(metadata(n_layers, depth, n_tokens), listed, ALIGNMENT))
        for tensor in listed:
            left, data = padded(tensor.nbytes, ALIGNMENT), noise[tensor.codec]
            while left:
                left -= file.write(data[: min(left, len(data))])
    return path.stat().st_size
