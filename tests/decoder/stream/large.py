"""A GGUF of any size that says one thing: the token that follows t is the next of a cycle.

Layers add nothing (their matrices are holes in the file, read as zeros), so that states are embeddings; the output row
of a token is the embedding of the one before it. A head of one layer reads the token alone, and drafts the same cycle:
its own matrices are small, since a head of zeros is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from mtptools.checkpoint import open_checkpoint
from tests.decoder.large_models import Listing, gguf_bytes


@dataclass(frozen=True)
class Sizes:
    hidden: int = 512
    inner: int = 2048
    layers: int = 4
    vocab: int = 1024
    codec: str = "BF16"

    @property
    def head_dim(self) -> int:
        return self.hidden // 4


def listing(s: Sizes) -> Listing:
    out: Listing = {
        "token_embd.weight": ("BF16", (s.vocab, s.hidden)),
        "output.weight": ("BF16", (s.vocab, s.hidden)),
        "output_norm.weight": ("F32", (s.hidden,)),
    }
    for n in range(s.layers + 1):
        out |= {
            f"blk.{n}.{name}.weight": spec
            for name, spec in {
                "attn_norm": ("F32", (s.hidden,)),
                "post_attention_norm": ("F32", (s.hidden,)),
                "attn_q": (s.codec, (2 * s.hidden, s.hidden)),
                "attn_k": (s.codec, (s.head_dim, s.hidden)),
                "attn_v": (s.codec, (s.head_dim, s.hidden)),
                "attn_output": (s.codec, (s.hidden, s.hidden)),
                "attn_q_norm": ("F32", (s.head_dim,)),
                "attn_k_norm": ("F32", (s.head_dim,)),
                "ffn_gate": (s.codec, (s.inner, s.hidden)),
                "ffn_up": (s.codec, (s.inner, s.hidden)),
                "ffn_down": (s.codec, (s.hidden, s.inner)),
            }.items()
        }
    head = f"blk.{s.layers}.nextn."
    out[f"{head}eh_proj.weight"] = ("BF16", (s.hidden, 2 * s.hidden))
    out |= {f"{head}{name}.weight": ("F32", (s.hidden,)) for name in ("enorm", "hnorm", "shared_head_norm")}
    return out


def write(path: Path, s: Sizes) -> Path:
    """The header by gguf-py; then only what is not zero."""
    writer = gguf.GGUFWriter(path, "qwen35")
    for key, value in {
        "block_count": s.layers + 1,
        "nextn_predict_layers": 1,
        "context_length": 8192,
        "embedding_length": s.hidden,
        "feed_forward_length": s.inner,
        "attention.head_count": 4,
        "attention.head_count_kv": 1,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "rope.dimension_count": s.head_dim // 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": 16,
        "ssm.group_count": 2,
        "ssm.time_step_rank": 4,
        "ssm.inner_size": 64,
        "full_attention_interval": 1,
    }.items():
        writer.add_uint32(f"qwen35.{key}", value)
    writer.add_float32("qwen35.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen35.rope.freq_base", 1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab", *(f"<{n}>" for n in range(3, s.vocab))])
    writer.add_token_types([gguf.TokenType.NORMAL] * s.vocab)
    writer.add_token_merges(["a b"])
    total = 0
    listed = listing(s)
    for name, (codec, shape) in listed.items():
        nbytes = gguf_bytes(codec, shape)
        writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, raw_dtype=gguf.GGMLQuantizationType[codec])
        total += gguf.GGUFWriter.ggml_pad(nbytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with open(path, "ab") as file:
        file.truncate(gguf.GGUFWriter.ggml_pad(path.stat().st_size, writer.data_alignment) + total)
    _fill(path, s, listed)
    return path


def cycle(s: Sizes, n: int) -> list[int]:
    """The first n tokens of what it writes."""
    return [(5 * t) % s.vocab for t in range(n)]


def _fill(path: Path, s: Sizes, listed: Listing) -> None:
    embed = np.random.default_rng(0).standard_normal((s.vocab, s.hidden)).astype(np.float32)
    output = np.empty_like(embed)
    output[(np.arange(s.vocab) + 5) % s.vocab] = embed * 0.06
    values = {"token_embd.weight": embed, "output.weight": output}
    values[f"blk.{s.layers}.nextn.eh_proj.weight"] = np.eye(s.hidden, 2 * s.hidden, dtype=np.float32)
    values |= {name: np.ones(shape, np.float32) for name, (codec, shape) in listed.items() if codec == "F32"}
    mine = [name for name, (codec, _) in listed.items() if name.startswith(f"blk.{s.layers}.") and codec == s.codec]
    values |= {name: _small(listed[name][1]) for name in mine if name not in values}
    ckpt = open_checkpoint(path)
    with open(path, "r+b") as file:
        for name, a in values.items():
            file.seek(ckpt[name].blobs[0].offset)
            kind = gguf.GGMLQuantizationType[listed[name][0]]
            file.write(gguf.quants.quantize(a, kind).tobytes())


def _small(shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(1).standard_normal(shape) * 1e-3).astype(np.float32)
