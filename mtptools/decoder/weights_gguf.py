"""Weights of a GGUF, by the decoder's roles.

What llama.cpp's converter does to values (`conversion/qwen.py`): norms hold the factor itself, `ssm_a` holds
-exp(A_log), and in Qwen3.5, where there are more value heads than key heads, value heads stand tiled (v0 of every key
head, then v1 of every key head …) instead of grouped by key head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.draft_map import D2T, T2D, gguf_map
from mtptools.decoder.key_heads import JOINED, pick
from mtptools.decoder.names_gguf import FUSION, GGUF_BLOCK, GGUF_TOP
from mtptools.decoder.names_v4 import GGUF_STREAMS
from mtptools.decoder.parts import Part, Scope
from mtptools.errors import MissingRoleError
from mtptools.hparams import HParams
from mtptools.quantized import beside, companions, logical
from mtptools.vocab.maps import DraftVocabulary

__all__ = ["GgufWeights", "gguf_columns", "tiled_heads"]

_TILED: Final = ("qwen35", "qwen35moe")
_JOINED: Final = {
    **dict.fromkeys(("query", "key", "value"), "qkv"),
    **{role: joined for role, (joined, _) in JOINED.items()},
}
"""Role -> the role of a tensor that it may be a part of."""

_FUSED: Final = ("query", "key", "value", "query_bias", "key_bias", "value_bias")


def tiled_heads(n_k: int, n_v: int) -> NDArray[np.int64]:
    """[n_v]: the grouped number of each value head, in tiled order."""
    return np.arange(n_v, dtype=np.int64).reshape(n_k, n_v // n_k).T.reshape(-1)


def _spread(heads: NDArray[np.int64], dim: int) -> NDArray[np.int64]:
    """A permutation of heads as one of their rows, `dim` rows a head."""
    return (heads[:, None] * dim + np.arange(dim, dtype=np.int64)).reshape(-1)


def gguf_columns(hp: HParams, role: str) -> NDArray[np.int64] | None:
    """Which of the decoder's columns stands at each place of the tensor in a GGUF; None: they stand in order."""
    if role != "delta_out" or not _is_tiled(hp):
        return None
    return _spread(tiled_heads(hp.linear_k_heads, hp.linear_v_heads), hp.linear_v_head_dim)


def _is_tiled(hp: HParams) -> bool:
    return hp.family in _TILED and hp.linear_k_heads != hp.linear_v_heads


class GgufWeights:
    def __init__(self, ckpt: Checkpoint) -> None:
        self.tensors, self.hparams, self.where = ckpt, ckpt.hparams, ckpt.path
        self.names = GGUF_BLOCK[ckpt.hparams.family]
        self.used: set[str] = set()
        depth = 0
        while any(name.startswith(f"blk.{self.hparams.n_layers + depth}.") for name in ckpt):
            depth += 1
        self.head_depth = depth
        self.sidecar = not any(name.startswith("blk.0.") for name in ckpt)

    def vocabulary(self) -> DraftVocabulary | None:
        self.used.add(D2T)
        return gguf_map(self.tensors, self.hparams.vocab_size, self.where)

    def _name(self, scope: Scope, role: str) -> str:
        kind, number = scope
        if kind == "top" or (kind == "head" and role in GGUF_STREAMS):  # there is room for one set of these
            return GGUF_TOP[role]
        block = number if kind == "layer" else self.hparams.n_layers + number
        name = f"blk.{block}.{self.names.get(role, role)}"
        if role in FUSION and name not in self.tensors:  # deeper layers may share the first one's fusion
            return f"blk.{self.hparams.n_layers}.{self.names[role]}"
        return name

    def has(self, scope: Scope, role: str) -> bool:
        if role.endswith("_bias") and role in _FUSED and self._name(scope, "qkv_bias") in self.tensors:
            return True
        return self._name(scope, role) in self.tensors

    def parts(self, scope: Scope, role: str) -> list[Part]:
        if role in JOINED and JOINED[role][0] in self.names and self.has(scope, JOINED[role][0]):
            return pick(self._whole(scope, JOINED[role][0]), role, self.hparams)
        if role == "expert_gate_up" and not self.has(scope, role):
            gate, up = (self._whole(scope, f"expert_{kind}") for kind in ("gate", "up"))
            size = gate.tensor.shape[-2]
            return [part.rows(at, at + size) for at in range(0, gate.n_rows, size) for part in (gate, up)]
        if role in _FUSED and not self.has(scope, role) and self._name(scope, "qkv") in self.tensors:
            return self._fused(scope, role)
        part = self._whole(scope, role)
        return [self._grouped(part, role) if role.startswith("delta_") else part]

    def _whole(self, scope: Scope, role: str) -> Part:
        name = self._name(scope, role)
        if name not in self.tensors:
            raise MissingRoleError(
                f"tensor {name} is not there", where=self.where, hint=f"mtptools validate {self.where}"
            )
        self.used.add(name)
        tensor = self.tensors[name]
        if tensor.codec == "NVFP4":  # ModelOpt's second scale stands beside it; input_scale is not the weight's
            self.used.update(companions(name, self.tensors))
            tensor = logical(tensor, beside(name, self.tensors))
        return Part.whole(tensor)

    def _fused(self, scope: Scope, role: str) -> list[Part]:
        """Queries, keys or values of files that keep the three in one tensor."""
        kind, _, bias = role.partition("_")
        hp = self.hparams
        keys = hp.n_kv_heads * hp.head_dim
        whole = self._whole(scope, f"qkv_{bias}" if bias else "qkv")
        size = whole.tensor.shape[0]
        starts = {"query": (0, size - 2 * keys), "key": (size - 2 * keys, size - keys), "value": (size - keys, size)}
        if bias:
            return [replace(whole, take=np.arange(*starts[kind], dtype=np.int64))]
        return [whole.rows(*starts[kind])]

    def _grouped(self, part: Part, role: str) -> Part:
        """Undo the tiled order of value heads. Lengths are checked where the part is used."""
        hp = self.hparams
        if not _is_tiled(hp):
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

    def gguf_names(self, scope: Scope, role: str) -> tuple[str, ...]:
        for one in (role, _JOINED.get(role, role)):
            if (name := self._name(scope, one)) in self.tensors:
                return (name,)
        if role == "expert_gate_up":
            return tuple(self._name(scope, f"expert_{kind}") for kind in ("gate", "up"))
        kind, number = scope
        return (f"blk.{number if kind == 'layer' else self.hparams.n_layers + number}.{self.names[role]}",)

    def leftover(self, kind: str) -> list[str]:
        def belongs(name: str) -> bool:
            if name in (D2T, T2D):
                return kind == ("head" if self.head_depth else "layer")
            if not name.startswith("blk."):
                return kind == "layer" and name not in GGUF_STREAMS.values()
            number = name.split(".", 2)[1]
            return (kind == "layer") == (number.isdecimal() and int(number) < self.hparams.n_layers)

        return [name for name in self.tensors if belongs(name) and name not in self.used]
