"""The decoder's own map of GGUF names and values for `qwen35` and `qwen35moe`.

It shares nothing with the converter's tables. Source: llama.cpp's `src/models/qwen35.cpp` (names and shapes the
loader asks for) and `conversion/qwen.py` (what the converter does to values): norms hold 1 + w, `ssm_a` holds
-exp(A_log), and where there are more value heads than key heads, value heads stand tiled (v0 of every key head,
then v1 of every key head …) instead of grouped by key head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.decoder.parts import Part, Scope
from mtptools.errors import MissingRoleError
from mtptools.hparams import HParams
from mtptools.tensors import Tensor

__all__ = ["GgufWeights", "tiled_heads"]

_TOP: Final = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "output": "output.weight"}

_BLOCK: Final = {
    "mixer_norm": "attn_norm.weight",
    "mlp_norm": "post_attention_norm.weight",
    # gated attention
    "query_gate": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "attention_out": "attn_output.weight",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    # Gated DeltaNet
    "delta_qkv": "attn_qkv.weight",
    "delta_z": "attn_gate.weight",
    "delta_b": "ssm_beta.weight",
    "delta_a": "ssm_alpha.weight",
    "delta_conv": "ssm_conv1d.weight",
    "delta_dt": "ssm_dt.bias",
    "delta_decay": "ssm_a",
    "delta_norm": "ssm_norm.weight",
    "delta_out": "ssm_out.weight",
    # feed-forward
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "router": "ffn_gate_inp.weight",
    "switch": "ffn_gate_inp_shexp.weight",
    "shared_gate": "ffn_gate_shexp.weight",
    "shared_up": "ffn_up_shexp.weight",
    "shared_down": "ffn_down_shexp.weight",
    # fusion
    "fuse": "nextn.eh_proj.weight",
    "embed_norm": "nextn.enorm.weight",
    "hidden_norm": "nextn.hnorm.weight",
    "head_norm": "nextn.shared_head_norm.weight",
    "head_embed": "nextn.embed_tokens.weight",
    "head_output": "nextn.shared_head_head.weight",
}

_FUSION: Final = ("fuse", "embed_norm", "hidden_norm", "head_norm", "head_embed", "head_output")


def tiled_heads(n_k: int, n_v: int) -> NDArray[np.int64]:
    """[n_v]: the grouped number of each value head, in tiled order."""
    return np.arange(n_v, dtype=np.int64).reshape(n_k, n_v // n_k).T.reshape(-1)


def _spread(heads: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """A permutation of heads as one of their rows, `dim` rows a head."""
    return (heads[:, None] * dim + np.arange(dim, dtype=np.int64)).reshape(-1)


class GgufWeights:
    def __init__(self, tensors: Mapping[str, Tensor], hparams: HParams, where: object) -> None:
        self.tensors = tensors
        self.hparams = hparams
        self.where = where
        self.used: set[str] = set()
        depth = 0
        while any(name.startswith(f"blk.{hparams.n_layers + depth}.") for name in tensors):
            depth += 1
        self.head_depth = depth

    def _name(self, scope: Scope, role: str) -> str:
        kind, number = scope
        if kind == "top":
            return _TOP[role]
        block = number if kind == "layer" else self.hparams.n_layers + number
        name = f"blk.{block}.{_BLOCK[role]}"
        if role in _FUSION and name not in self.tensors:  # deeper layers share the first one's fusion
            return f"blk.{self.hparams.n_layers}.{_BLOCK[role]}"
        return name

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise MissingRoleError(
                f"tensor {name} is not there", where=self.where, hint=f"mtptools validate {self.where}"
            )
        self.used.add(name)
        return self.tensors[name]

    def has(self, scope: Scope, role: str) -> bool:
        return self._name(scope, role) in self.tensors

    def part(self, scope: Scope, role: str) -> Part:
        part = Part.whole(self._find(self._name(scope, role)))
        return self._grouped(part, role) if role.startswith("delta_") else part

    def _grouped(self, part: Part, role: str) -> Part:
        """Undo the tiled order of value heads. Lengths are checked where the part is used."""
        hp = self.hparams
        if hp.linear_k_heads == hp.linear_v_heads:
            return part
        heads = tiled_heads(hp.linear_k_heads, hp.linear_v_heads)
        rows = _spread(heads, hp.linear_v_head_dim)
        if role in ("delta_qkv", "delta_conv"):
            keys = 2 * hp.linear_k_heads * hp.linear_k_head_dim
            return replace(part, to_row=np.concatenate((np.arange(keys, dtype=np.int64), rows + keys)))
        if role == "delta_z":
            return replace(part, to_row=rows)
        if role in ("delta_a", "delta_b"):
            return replace(part, to_row=heads)
        if role == "delta_out":
            return replace(part, take=np.argsort(rows))
        if role in ("delta_dt", "delta_decay"):
            return replace(part, take=np.argsort(heads))
        return part

    def leftover(self, kind: str) -> list[str]:
        def belongs(name: str) -> bool:
            if not name.startswith("blk."):
                return kind == "layer" and name == "rope_freqs.weight"
            number = name.split(".", 2)[1]
            return (kind == "layer") == (number.isdecimal() and int(number) < self.hparams.n_layers)

        return [name for name in self.tensors if belongs(name) and name not in self.used]

    def experts(self, scope: Scope, role: str) -> list[Part]:
        kind, number = scope
        block = f"blk.{number if kind == 'layer' else self.hparams.n_layers + number}."
        if role == "expert_down":
            return [Part.whole(self._find(f"{block}ffn_down_exps.weight"))]
        fused = f"{block}ffn_gate_up_exps.weight"
        if fused in self.tensors:
            return [Part.whole(self._find(fused))]
        gate = Part.whole(self._find(f"{block}ffn_gate_exps.weight"))
        up = Part.whole(self._find(f"{block}ffn_up_exps.weight"))
        size = gate.tensor.shape[-2]
        return [part.rows(start, start + size) for start in range(0, gate.n_rows, size) for part in (gate, up)]
