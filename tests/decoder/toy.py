"""Small checkpoints with random weights, written for the tests: HF folders, and GGUF files made from them.

The GGUF side is written after llama.cpp's `conversion/qwen.py`, with gguf-py's writer: names, `1 + w` norms,
`-exp(A_log)`, tiled value heads, stacked experts. It shares no table with the decoder.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

H, VOCAB, LAYERS = 256, 384, 3
N_K, N_V, K_DIM, V_DIM = 2, 4, 32, 64  # more value heads than key heads: their order matters
HEADS, KV_HEADS, HEAD_DIM, FFN = 4, 2, 64, 512
EXPERTS, USED, MOE_FFN = 6, 2, 256
TYPES = ("linear_attention", "linear_attention", "full_attention")

Arrays = dict[str, np.ndarray]


def config(moe: bool, depth: int = 1) -> dict[str, object]:
    out: dict[str, object] = {
        "architectures": ["Qwen3_5MoeForCausalLM" if moe else "Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_moe_text" if moe else "qwen3_5_text",
        "vocab_size": VOCAB,
        "hidden_size": H,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "layer_types": list(TYPES),
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": N_K,
        "linear_num_value_heads": N_V,
        "linear_key_head_dim": K_DIM,
        "linear_value_head_dim": V_DIM,
        "tie_word_embeddings": False,
        "mtp_num_hidden_layers": depth,
    }
    if moe:
        out |= {
            "num_experts": EXPERTS,
            "num_experts_per_tok": USED,
            "moe_intermediate_size": MOE_FFN,
            "shared_expert_intermediate_size": MOE_FFN,
        }
    else:
        out["intermediate_size"] = FFN
    return out


def _matrix(rng: np.random.Generator, *shape: int, gain: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * gain / np.sqrt(shape[-1])).astype(np.float32)


def _norm(rng: np.random.Generator, size: int, centre: float = 0.0) -> np.ndarray:
    return (centre + 0.3 * rng.standard_normal(size)).astype(np.float32)


def _layer(rng: np.random.Generator, kind: str, moe: bool, out_gain: float) -> Arrays:
    arrays = {"input_layernorm.weight": _norm(rng, H), "post_attention_layernorm.weight": _norm(rng, H)}
    if kind == "linear_attention":
        channels = 2 * N_K * K_DIM + N_V * V_DIM
        arrays |= {
            "linear_attn.in_proj_qkv.weight": _matrix(rng, channels, H),
            "linear_attn.in_proj_z.weight": _matrix(rng, N_V * V_DIM, H),
            "linear_attn.in_proj_b.weight": _matrix(rng, N_V, H),
            "linear_attn.in_proj_a.weight": _matrix(rng, N_V, H),
            "linear_attn.conv1d.weight": _matrix(rng, channels, 1, 4, gain=2),
            "linear_attn.dt_bias": _norm(rng, N_V),
            "linear_attn.A_log": _norm(rng, N_V),
            "linear_attn.norm.weight": _norm(rng, V_DIM, 1.0),
            "linear_attn.out_proj.weight": _matrix(rng, H, N_V * V_DIM, gain=out_gain),
        }
    else:
        arrays |= {
            "self_attn.q_proj.weight": _matrix(rng, 2 * HEADS * HEAD_DIM, H),
            "self_attn.k_proj.weight": _matrix(rng, KV_HEADS * HEAD_DIM, H),
            "self_attn.v_proj.weight": _matrix(rng, KV_HEADS * HEAD_DIM, H),
            "self_attn.o_proj.weight": _matrix(rng, H, HEADS * HEAD_DIM, gain=out_gain),
            "self_attn.q_norm.weight": _norm(rng, HEAD_DIM),
            "self_attn.k_norm.weight": _norm(rng, HEAD_DIM),
        }
    if moe:
        arrays |= {
            "mlp.gate.weight": _matrix(rng, EXPERTS, H, gain=2),
            "mlp.experts.gate_up_proj": _matrix(rng, EXPERTS, 2 * MOE_FFN, H),
            "mlp.experts.down_proj": _matrix(rng, EXPERTS, H, MOE_FFN, gain=out_gain),
            "mlp.shared_expert_gate.weight": _matrix(rng, 1, H),
            "mlp.shared_expert.gate_proj.weight": _matrix(rng, MOE_FFN, H),
            "mlp.shared_expert.up_proj.weight": _matrix(rng, MOE_FFN, H),
            "mlp.shared_expert.down_proj.weight": _matrix(rng, H, MOE_FFN, gain=out_gain),
        }
    else:
        arrays |= {
            "mlp.gate_proj.weight": _matrix(rng, FFN, H),
            "mlp.up_proj.weight": _matrix(rng, FFN, H),
            "mlp.down_proj.weight": _matrix(rng, H, FFN, gain=out_gain),
        }
    return arrays


def weights(moe: bool, depth: int = 1, seed: int = 0, noise: float = 4.0) -> Arrays:
    """A model whose greedy text walks one long random cycle over the vocabulary, and a head that knows the cycle.

    The output row of the token that follows t is t's embedding, and blocks add little to the residual stream.
    The fusion is [identity | noise]: the head reads the embedding half, and with its norms right drafts
    the next step of the cycle.
    """
    rng = np.random.default_rng(seed)
    embed = rng.standard_normal((VOCAB, H)).astype(np.float32)
    cycle = rng.permutation(VOCAB)
    output = np.empty_like(embed)
    output[np.roll(cycle, -1)] = embed[cycle] * 0.06
    arrays = {"model.embed_tokens.weight": embed, "lm_head.weight": output, "model.norm.weight": _norm(rng, H)}
    gain = 0.5
    for n, kind in enumerate(TYPES):
        arrays |= {f"model.layers.{n}.{name}": a for name, a in _layer(rng, kind, moe, gain).items()}
    for d in range(depth):
        arrays |= {f"mtp.layers.{d}.{name}": a for name, a in _layer(rng, "full_attention", moe, gain).items()}
    fuse = np.concatenate((np.eye(H, dtype=np.float32), np.zeros((H, H), np.float32)), axis=1)
    arrays |= {
        "mtp.fc.weight": fuse + _matrix(rng, H, 2 * H, gain=noise),
        "mtp.pre_fc_norm_embedding.weight": _norm(rng, H),
        "mtp.pre_fc_norm_hidden.weight": _norm(rng, H),
        "mtp.norm.weight": _norm(rng, H),
    }
    return arrays


def write_hf(folder: Path, arrays: Arrays, moe: bool, depth: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(moe, depth)))
    return folder


# --- GGUF ------------------------------------------------------------------------------------------------------

_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
_HEAD_NAMES = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}
_TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
}


def _tiled(a: np.ndarray, axis: int, dim: int) -> np.ndarray:
    """Value heads from grouped by key head to tiled, along one axis."""
    shape = (*a.shape[:axis], N_K, N_V // N_K, dim, *a.shape[axis + 1 :])
    return np.ascontiguousarray(np.swapaxes(a.reshape(shape), axis, axis + 1)).reshape(a.shape)


def _converted(name: str, a: np.ndarray) -> np.ndarray:
    keys = 2 * N_K * K_DIM
    if "norm" in name and not name.endswith("linear_attn.norm.weight"):
        return a + np.float32(1)
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        a = a.reshape(a.shape[0], -1)
        return np.concatenate((a[:keys], _tiled(a[keys:], 0, V_DIM)))
    if name.endswith("in_proj_z.weight"):
        return _tiled(a, 0, V_DIM)
    if name.endswith(("in_proj_a.weight", "in_proj_b.weight")):
        return _tiled(a, 0, 1)
    if name.endswith("A_log"):
        return _tiled(-np.exp(a), 0, 1)
    if name.endswith("dt_bias"):
        return _tiled(a, 0, 1)
    if name.endswith("out_proj.weight"):
        return _tiled(a, 1, V_DIM)
    if name.endswith("shared_expert_gate.weight"):
        return a[0]
    return a


def q4_k(a: np.ndarray) -> np.ndarray:
    """A crude Q4_K: one scale and minimum per 256 values. Bytes [rows, …]."""
    blocks = a.reshape(-1, 256)
    low, high = np.minimum(blocks.min(1), 0), blocks.max(1)
    d, m = ((high - low) / 15).astype(np.float16), (-low).astype(np.float16)
    q = np.clip(np.rint((blocks + m[:, None].astype(np.float32)) / np.maximum(d[:, None], 1e-8)), 0, 15)
    q = q.astype(np.uint8).reshape(-1, 4, 2, 32)
    scales = np.tile(np.array([1] * 8 + [0x11] * 4, np.uint8), (len(blocks), 1))
    packed = (q[:, :, 0] | (q[:, :, 1] << 4)).reshape(-1, 128)
    out = np.concatenate((d[:, None].view(np.uint8), m[:, None].view(np.uint8), scales, packed), axis=1)
    return out.reshape(a.shape[0], -1) if a.ndim == 2 else out.reshape(*a.shape[:-1], -1)


def to_gguf(arrays: Arrays) -> Arrays:
    out: Arrays = {}
    for name, a in arrays.items():
        if name in _TOP_NAMES:
            out[_TOP_NAMES[name]] = _converted(name, a)
        elif name in _HEAD_NAMES:
            out[f"blk.{LAYERS}.{_HEAD_NAMES[name]}"] = _converted(name, a)
        else:
            kind, _, number, rest = name.split(".", 3)
            block = f"blk.{int(number) + (LAYERS if kind == 'mtp' else 0)}."
            if rest == "mlp.experts.gate_up_proj":
                out[f"{block}ffn_gate_exps.weight"] = np.ascontiguousarray(a[:, :MOE_FFN])
                out[f"{block}ffn_up_exps.weight"] = np.ascontiguousarray(a[:, MOE_FFN:])
            else:
                out[block + _NAMES[rest]] = _converted(name, a)
    return out


def write_gguf(path: Path, arrays: Arrays, moe: bool, kind: str = "F32", depth: int = 1) -> Path:
    """`kind` is the type of the matrices: F32, BF16, Q8_0 or Q4_K. Vectors and routers stay F32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arch = "qwen35moe" if moe else "qwen35"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS + depth)
    writer.add_embedding_length(H)
    writer.add_context_length(2048)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM // 4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_state_size(K_DIM)
    writer.add_ssm_group_count(N_K)
    writer.add_ssm_time_step_rank(N_V)
    writer.add_ssm_inner_size(N_V * V_DIM)
    writer.add_array(f"{arch}.attention.recurrent_layers", [t != "full_attention" for t in TYPES] + [False] * depth)
    if moe:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(USED)
        writer.add_expert_feed_forward_length(MOE_FFN)
        writer.add_expert_shared_feed_forward_length(MOE_FFN)
    else:
        writer.add_feed_forward_length(FFN)
    if depth:
        writer.add_nextn_predict_layers(depth)
    for name, a in to_gguf(arrays).items():
        small = a.ndim == 1 or "ffn_gate_inp" in name or "ssm_conv1d" in name
        if small or kind == "F32":
            writer.add_tensor(name, a)
        elif kind == "Q4_K":
            writer.add_tensor(name, q4_k(a), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
        else:
            qtype = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(a, qtype), raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
