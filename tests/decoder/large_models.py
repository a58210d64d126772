"""GGUFs at real shapes with holes for data: true headers, next to no disk."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from fixtures import releases

Listing = dict[str, tuple[str, tuple[int, ...]]]


def gguf_bytes(codec: str, shape: tuple[int, ...]) -> int:
    """By gguf-py's table of block sizes."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[codec]]
    return prod(shape) // values * size


def write_sparse(path: Path, metadata: dict[str, Any], listing: Listing) -> Path:
    """The header is gguf-py's."""
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32, float: gguf.GGUFValueType.FLOAT32}
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for name, value in metadata.items():
        if name != "general.architecture":
            writer.add_key_value(name, value, kinds[type(value)])
    total = 0
    for name, (codec, shape) in listing.items():
        nbytes = gguf_bytes(codec, shape)
        kind = gguf.GGMLQuantizationType[codec]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, raw_dtype=kind)
        total += gguf.GGUFWriter.ggml_pad(nbytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with open(path, "ab") as file:
        file.truncate(gguf.GGUFWriter.ggml_pad(path.stat().st_size, writer.data_alignment) + total)
    return path


def qwen35_27b(path: Path) -> Path:
    """Qwen3.5-27B with its head as Q4_K_M: sizes of its config.json, types by llama.cpp's rule for that preset."""
    text = releases.load("qwen3.5-27b").config["text_config"]
    metadata = {
        "general.architecture": "qwen35",
        "qwen35.block_count": 65,
        "qwen35.nextn_predict_layers": 1,
        "qwen35.context_length": text["max_position_embeddings"],
        "qwen35.embedding_length": text["hidden_size"],
        "qwen35.feed_forward_length": text["intermediate_size"],
        "qwen35.attention.head_count": text["num_attention_heads"],
        "qwen35.attention.head_count_kv": text["num_key_value_heads"],
        "qwen35.attention.key_length": text["head_dim"],
        "qwen35.attention.value_length": text["head_dim"],
        "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen35.rope.dimension_count": 64,
        "qwen35.rope.freq_base": 1e7,
        "qwen35.ssm.conv_kernel": 4,
        "qwen35.ssm.state_size": 128,
        "qwen35.ssm.group_count": 16,
        "qwen35.ssm.time_step_rank": 48,
        "qwen35.ssm.inner_size": 6144,
        "qwen35.full_attention_interval": 4,
    }
    return write_sparse(path, metadata, dict(_qwen35_tensors()))


def _qwen35_tensors() -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    hidden, inner, vocab = 5120, 17408, 248320
    yield "token_embd.weight", ("Q4_K", (vocab, hidden))
    yield "output.weight", ("Q6_K", (vocab, hidden))
    yield "output_norm.weight", ("F32", (hidden,))
    for n in range(65):
        more = "Q6_K" if n < 8 or n >= 56 or (n - 8) % 3 == 2 else "Q4_K"
        shapes: dict[str, tuple[str, tuple[int, ...]]] = {
            "attn_norm": ("F32", (hidden,)),
            "post_attention_norm": ("F32", (hidden,)),
            "ffn_gate": ("Q4_K", (inner, hidden)),
            "ffn_up": ("Q4_K", (inner, hidden)),
            "ffn_down": (more, (hidden, inner)),
        }
        if n % 4 == 3 or n == 64:
            shapes |= {
                "attn_q": ("Q4_K", (12288, hidden)),
                "attn_k": ("Q4_K", (1024, hidden)),
                "attn_v": (more, (1024, hidden)),
                "attn_output": ("Q4_K", (hidden, 6144)),
                "attn_q_norm": ("F32", (256,)),
                "attn_k_norm": ("F32", (256,)),
            }
        else:
            shapes |= {
                "attn_qkv": ("Q5_K", (10240, hidden)),
                "attn_gate": ("Q4_K", (6144, hidden)),
                "ssm_alpha": ("Q8_0", (48, hidden)),
                "ssm_beta": ("Q8_0", (48, hidden)),
                "ssm_out": ("Q5_K", (hidden, 6144)),
                "ssm_conv1d": ("F32", (10240, 4)),
                "ssm_norm": ("F32", (128,)),
            }
            yield f"blk.{n}.ssm_a", ("F32", (48,))
            yield f"blk.{n}.ssm_dt.bias", ("F32", (48,))
        if n == 64:
            shapes |= {"nextn.eh_proj": ("Q8_0", (hidden, 2 * hidden))}
            shapes |= {f"nextn.{name}": ("F32", (hidden,)) for name in ("enorm", "hnorm", "shared_head_norm")}
        for name, spec in shapes.items():
            yield f"blk.{n}.{name}.weight", spec


def deepseek_671b(path: Path) -> Path:
    """DeepSeek-V3 with its head as Q4_K: the head's layer as the release lists it, in every layer."""
    release = releases.load("deepseek-v3")
    config = release.config
    head = {
        name.removeprefix("blk.61."): ("F32" if spec.dtype == "F32" else "Q4_K", spec.shape)
        for name, spec in release.gguf.items()
    }
    listing: Listing = {
        "token_embd.weight": ("Q4_K", (config["vocab_size"], config["hidden_size"])),
        "output.weight": ("Q6_K", (config["vocab_size"], config["hidden_size"])),
        "output_norm.weight": ("F32", (config["hidden_size"],)),
    }
    inner, hidden = config["intermediate_size"], config["hidden_size"]
    dense = {"ffn_gate": (inner, hidden), "ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    for n in range(62):
        for name, (codec, shape) in head.items():
            if name.startswith("nextn.") and n < 61:
                continue
            if n < 3 and name.startswith(("ffn_gate", "ffn_up", "ffn_down", "exp_probs")):
                continue
            codec = "Q8_0" if shape[-1] % 256 and codec == "Q4_K" else codec
            listing[f"blk.{n}.{name}"] = (codec, shape)
        if n < 3:
            listing |= {f"blk.{n}.{name}.weight": ("Q4_K", shape) for name, shape in dense.items()}
    metadata = {
        "general.architecture": "deepseek2",
        "deepseek2.block_count": 62,
        "deepseek2.nextn_predict_layers": 1,
        "deepseek2.context_length": 163840,
        "deepseek2.embedding_length": hidden,
        "deepseek2.feed_forward_length": inner,
        "deepseek2.leading_dense_block_count": 3,
        "deepseek2.attention.head_count": 128,
        "deepseek2.attention.head_count_kv": 1,
        "deepseek2.attention.layer_norm_rms_epsilon": 1e-6,
        "deepseek2.attention.q_lora_rank": 1536,
        "deepseek2.attention.kv_lora_rank": 512,
        "deepseek2.attention.key_length": 576,
        "deepseek2.attention.value_length": 512,
        "deepseek2.attention.key_length_mla": 192,
        "deepseek2.attention.value_length_mla": 128,
        "deepseek2.rope.dimension_count": 64,
        "deepseek2.rope.freq_base": 10000.0,
        "deepseek2.expert_count": 256,
        "deepseek2.expert_used_count": 8,
        "deepseek2.expert_shared_count": 1,
        "deepseek2.expert_feed_forward_length": 2048,
        "deepseek2.expert_gating_func": 2,
        "deepseek2.expert_group_count": 8,
        "deepseek2.expert_group_used_count": 4,
        "deepseek2.expert_weights_norm": True,
        "deepseek2.expert_weights_scale": 2.5,
    }
    return write_sparse(path, metadata, listing)
