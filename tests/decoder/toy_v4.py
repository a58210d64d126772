"""A small DeepSeek-V4 with random weights: an HF folder as released (plain, or in FP8 and FP4), and GGUF files.

The GGUF side is written after llama.cpp's `conversion/deepseek.py`, with gguf-py's writer, except that experts are
float32 where that converter always writes MXFP4. It shares no table with the decoder.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

H, VOCAB, LAYERS, STREAMS = 64, 128, 4, 4
HEADS, DIM, ROPE, Q_RANK = 4, 128, 16, 32
GROUPS, O_RANK, WINDOW = 2, 16, 16
INDEX_HEADS, INDEX_DIM, INDEX_TOP = 24, 64, 8  # few heads would tie at a score of zero
EXPERTS, USED, FFN = 6, 2, 32
RATIOS = (0, 4, 128, 4)

Arrays = dict[str, np.ndarray]

CONFIG: dict[str, object] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": VOCAB,
    "hidden_size": H,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": DIM,
    "qk_rope_head_dim": ROPE,
    "q_lora_rank": Q_RANK,
    "o_groups": GROUPS,
    "o_lora_rank": O_RANK,
    "sliding_window": WINDOW,
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": INDEX_DIM,
    "index_topk": INDEX_TOP,
    "hc_mult": STREAMS,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "moe_intermediate_size": FFN,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": USED,
    "num_hash_layers": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 1.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 4,
        "original_max_position_embeddings": 256,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "compress_ratios": [*RATIOS, 0],
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


class _Maker:
    def __init__(self, seed: int, gain: float) -> None:
        self.rng, self.gain = np.random.default_rng(seed), gain

    def matrix(self, *shape: int, gain: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * gain / np.sqrt(shape[-1])).astype(np.float32)

    def norm(self, size: int) -> np.ndarray:
        return self.rng.uniform(0.5, 1.5, size).astype(np.float32)

    def noise(self, *shape: int) -> np.ndarray:
        return (0.5 * self.rng.standard_normal(shape)).astype(np.float32)

    def streams(self, name: str, rows: int, scales: int) -> Arrays:
        return {
            f"{name}_fn": self.matrix(rows, STREAMS * H),
            f"{name}_base": self.noise(rows),
            f"{name}_scale": self.norm(scales),
        }

    def compressor(self, ratio: int, dim: int) -> Arrays:
        width = dim * (2 if ratio == 4 else 1)
        return {
            "wkv.weight": self.matrix(width, H),
            "wgate.weight": self.matrix(width, H),
            "ape": self.noise(ratio, width),
            "norm.weight": self.norm(dim),
        }

    def layer(self, ratio: int, hashed: bool) -> Arrays:
        mix = (2 + STREAMS) * STREAMS
        out = {
            "attn_norm.weight": self.norm(H),
            "ffn_norm.weight": self.norm(H),
            **self.streams("hc_attn", mix, 3),
            **self.streams("hc_ffn", mix, 3),
            "attn.wq_a.weight": self.matrix(Q_RANK, H),
            "attn.q_norm.weight": self.norm(Q_RANK),
            "attn.wq_b.weight": self.matrix(HEADS * DIM, Q_RANK),
            "attn.wkv.weight": self.matrix(DIM, H),
            "attn.kv_norm.weight": self.norm(DIM),
            "attn.attn_sink": self.noise(HEADS),
            "attn.wo_a.weight": self.matrix(GROUPS * O_RANK, HEADS * DIM // GROUPS),
            "attn.wo_b.weight": self.matrix(H, GROUPS * O_RANK, gain=self.gain),
            "ffn.gate.weight": self.matrix(EXPERTS, H),
        }
        if hashed:
            out["ffn.gate.tid2eid"] = np.argsort(self.rng.random((VOCAB, EXPERTS)))[:, :USED].astype(np.int64)
        else:
            out["ffn.gate.bias"] = self.noise(EXPERTS)
        if ratio:
            out |= {f"attn.compressor.{k}": v for k, v in self.compressor(ratio, DIM).items()}
        if ratio == 4:
            out |= {f"attn.indexer.compressor.{k}": v for k, v in self.compressor(ratio, INDEX_DIM).items()}
            out["attn.indexer.wq_b.weight"] = self.matrix(INDEX_HEADS * INDEX_DIM, Q_RANK)
            out["attn.indexer.weights_proj.weight"] = self.matrix(INDEX_HEADS, H)
        for name in (*(f"experts.{e}" for e in range(EXPERTS)), "shared_experts"):
            out[f"ffn.{name}.w1.weight"] = self.matrix(FFN, H, gain=2)
            out[f"ffn.{name}.w3.weight"] = self.matrix(FFN, H, gain=2)
            out[f"ffn.{name}.w2.weight"] = self.matrix(H, FFN, gain=self.gain)
        return out


def weights(seed: int = 0, cycle: bool = False) -> Arrays:
    """Random weights. With `cycle` greedy text walks one long cycle and the head knows it, as in `toy.weights`."""
    make = _Maker(seed, 0.02 if cycle else 1.0)
    embed = make.rng.standard_normal((VOCAB, H)).astype(np.float32)
    output = make.matrix(VOCAB, H)
    if cycle:
        order = make.rng.permutation(VOCAB)
        output[np.roll(order, -1)] = embed[order]
    output[1] = 0  # the end token is never the best: llama.cpp forbids it where texts go on
    arrays = {"embed.weight": embed, "head.weight": output, "norm.weight": make.norm(H)}
    arrays |= make.streams("hc_head", STREAMS, 1)
    for n, ratio in enumerate(RATIOS):
        arrays |= {f"layers.{n}.{k}": v for k, v in make.layer(ratio, n == 0).items()}
    head = make.layer(0, False) | make.streams("hc_head", STREAMS, 1)
    head |= {f"{name}.weight": make.norm(H) for name in ("enorm", "hnorm", "norm")}
    head["e_proj.weight"] = np.eye(H, dtype=np.float32) if cycle else make.matrix(H, H)
    head["h_proj.weight"] = make.matrix(H, H, gain=0.05 if cycle else 1.0)
    return arrays | {f"mtp.0.{k}": v for k, v in head.items()}


def write_hf(folder: Path, arrays: Arrays, **changes: object) -> Path:
    return _write_hf(folder, {name: torch.from_numpy(a) for name, a in arrays.items()}, changes)


def _write_hf(folder: Path, tensors: dict[str, torch.Tensor], changes: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


_FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
_FP8 = ("wq_a", "wq_b", "wo_a", "wo_b", "e_proj", "h_proj", "attn.wkv", "shared_experts.w1", "shared_experts.w2")


def write_released(folder: Path, plain: Path, arrays: Arrays) -> None:
    """`folder`: random FP8 and FP4 codes and scales for matrices, as released; `plain`: the values they stand for."""
    make = torch.Generator().manual_seed(5)
    stored, values = {}, {}
    for name, a in arrays.items():
        stored[name] = values[name] = torch.from_numpy(a)
        stem, rows, cols = name.removesuffix("weight"), *(a.shape if a.ndim == 2 else (0, 0))
        if ".experts." in name:
            codes = torch.randint(0, 256, (rows, cols // 2), generator=make, dtype=torch.uint8)
            scale = torch.randint(122, 125, (rows, cols // 32), generator=make, dtype=torch.uint8)
            stored[name], stored[stem + "scale"] = codes.view(torch.int8), scale.view(torch.float8_e8m0fnu)
            grid = _FP4[torch.stack((codes & 15, codes >> 4), -1).flatten(1).long()]
            values[name] = grid * torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
        elif stem.endswith(tuple(f"{part}." for part in _FP8)):
            codes = torch.randn((rows, cols), generator=make).to(torch.float8_e4m3fn)
            shape = (-(-rows // 128), -(-cols // 128))
            scale = torch.randint(123, 126, shape, generator=make, dtype=torch.uint8)
            stored[name], stored[stem + "scale"] = codes, scale.view(torch.float8_e8m0fnu)
            spread = torch.exp2(scale.float() - 127).repeat_interleave(128, 0).repeat_interleave(128, 1)
            values[name] = codes.float() * spread[:rows, :cols]
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}
    _write_hf(folder, stored, {"quantization_config": fp8, "expert_dtype": "fp4"})
    _write_hf(plain, values, {})


_ROOT = {"embed.weight": "token_embd", "norm.weight": "output_norm", "head.weight": "output"}
_BLOCK = {
    "attn.wq_a": "attn_q_a",
    "attn.wq_b": "attn_q_b",
    "attn.q_norm": "attn_q_a_norm",
    "attn.wkv": "attn_kv",
    "attn.kv_norm": "attn_kv_a_norm",
    "attn.attn_sink": "attn_sinks",
    "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b",
    "attn.indexer.weights_proj": "indexer.proj",
    "attn.indexer.wq_b": "indexer.attn_q_b",
    "ffn.gate": "ffn_gate_inp",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
}
_W = {"w1": "gate", "w2": "down", "w3": "up"}


def _block_name(rest: str) -> str:
    if rest == "ffn.gate.bias":
        return "exp_probs_b.bias"
    rest = rest.removesuffix(".weight")
    for stem, new in (("attn.indexer.compressor.", "indexer_compressor_"), ("attn.compressor.", "attn_compressor_")):
        if rest.startswith(stem):
            return new + rest.removeprefix(stem).removeprefix("w") + ".weight"
    if rest.startswith("ffn.shared_experts."):
        return f"ffn_{_W[rest[-2:]]}_shexp.weight"
    return _BLOCK.get(rest, rest) + ".weight"


def to_gguf(arrays: Arrays, head: bool) -> Arrays:
    """The trunk, or the file of the head alone: its mix of streams stands where a trunk has its own."""
    out: Arrays = {}
    for name, a in arrays.items():
        if name in _ROOT:
            out[f"{_ROOT[name]}.weight"] = a
        elif name.startswith("mtp.") != head or ".experts." in name or "_proj." in name.replace("weights_proj", ""):
            continue
        elif name.startswith(("mtp.0.hc_head", "hc_head")):
            out[f"output_hc_{name.rpartition('_')[2]}.weight"] = a
        else:
            kind, number, rest = name.split(".", 2)
            out[f"blk.{LAYERS if kind == 'mtp' else number}.{_block_name(rest)}"] = (
                a.astype(np.int32) if rest.endswith("tid2eid") else a
            )
    for n, prefix in [(LAYERS, "mtp.0.")] if head else [(n, f"layers.{n}.") for n in range(LAYERS)]:
        for w, kind in _W.items():
            stack = [arrays[f"{prefix}ffn.experts.{e}.{w}.weight"] for e in range(EXPERTS)]
            out[f"blk.{n}.ffn_{kind}_exps.weight"] = np.stack(stack)
    if head:
        both = [arrays[f"mtp.0.{part}_proj.weight"] for part in "eh"]
        out[f"blk.{LAYERS}.nextn.eh_proj.weight"] = np.concatenate(both, axis=1)
    return out


def write_gguf(path: Path, arrays: Arrays, head: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    arch, blocks = "deepseek4", LAYERS + head
    writer = gguf.GGUFWriter(path, arch)
    counts = {
        "block_count": blocks,
        "context_length": 1024,
        "embedding_length": H,
        "embedding_length_out": H * STREAMS,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": DIM,
        "attention.value_length": DIM,
        "attention.q_lora_rank": Q_RANK,
        "attention.sliding_window": WINDOW,
        "attention.output_group_count": GROUPS,
        "attention.output_lora_rank": O_RANK,
        "attention.indexer.head_count": INDEX_HEADS,
        "attention.indexer.key_length": INDEX_DIM,
        "attention.indexer.top_k": INDEX_TOP,
        "rope.dimension_count": ROPE,
        "rope.scaling.original_context_length": 256,
        "hyper_connection.count": STREAMS,
        "hyper_connection.sinkhorn_iterations": 20,
        "hash_layer_count": 1,
        "expert_count": EXPERTS,
        "expert_used_count": USED,
        "expert_shared_count": 1,
        "expert_feed_forward_length": FFN,
        "expert_gating_func": 4,  # square root of softplus
    }
    reals = {
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.compress_rope_freq_base": 160000.0,
        "rope.freq_base": 10000.0,
        "rope.scaling.factor": 4.0,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "hyper_connection.epsilon": 1e-6,
        "expert_weights_scale": 1.5,
    }
    for key, count in counts.items():
        writer.add_uint32(f"{arch}.{key}", count)
    for key, real in reals.items():
        writer.add_float32(f"{arch}.{key}", real)
    writer.add_string(f"{arch}.rope.scaling.type", "yarn")
    writer.add_bool(f"{arch}.expert_weights_norm", True)
    writer.add_array(f"{arch}.attention.compress_ratios", [*RATIOS, 0])
    for kind in ("exp", "shexp"):
        writer.add_array(f"{arch}.swiglu_clamp_{kind}", [1.0] * blocks)
    if head:
        writer.add_uint32(f"{arch}.nextn_predict_layers", 1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{n:03}" for n in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(1)
    for name, a in to_gguf(arrays, head).items():
        writer.add_tensor(name, np.ascontiguousarray(a))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
