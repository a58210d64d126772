"""Builds DeepSeek-V4: blocks on streams, compressed attention, experts by score or by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mtptools.decoder.build import Builder
from mtptools.decoder.compressed import CompressedAttention, CompressedWeights
from mtptools.decoder.compressor import Compressor
from mtptools.decoder.hyper import HyperBlock, HyperConnection, HyperHead
from mtptools.decoder.indexer import Indexer
from mtptools.decoder.mtp_head import HeadLayer
from mtptools.decoder.parts import Scope, WeightSource
from mtptools.decoder.recorder import Recorder
from mtptools.decoder.rope import Rope
from mtptools.decoder.settings import LayerKind, Settings
from mtptools.decoder.settings_v4 import CSA, V4Settings
from mtptools.decoder.trunk import Trunk
from mtptools.errors import CorruptError
from mtptools.hparams import HParams

__all__ = ["V4Builder"]


class V4Builder(Builder):
    def __init__(
        self,
        source: WeightSource,
        hparams: HParams,
        settings: Settings,
        v4: V4Settings,
        device: torch.device,
        dtype: torch.dtype,
        weights: str = "loaded",
        recorder: Recorder | None = None,
    ) -> None:
        if settings.routing is not None:
            settings = replace(settings, routing=replace(settings.routing, limit=v4.limit))
        super().__init__(source, hparams, settings, device, dtype, weights, recorder)
        self.v4 = v4
        self.near, self.far = Rope(v4.near, device), Rope(v4.far, device)

    def trunk(self, *, layers: bool = True) -> Trunk:
        collapse = self.hyper_head(("top", 0)).collapse
        return replace(super().trunk(layers=layers), streams=self.v4.hyper.streams, collapse=collapse)

    def head_layer(self, scope: Scope, trunk: Trunk, before: Sequence[HeadLayer]) -> HeadLayer:
        return replace(super().head_layer(scope, trunk, before), collapse=self.hyper_head(scope).collapse)

    def fusion(self, scope: Scope) -> Tensor:
        """[hidden, 2 hidden], embedding columns first: joined in GGUF, two matrices in HF."""
        if self.source.has(scope, "fuse"):
            return super().fusion(scope)
        shape, roles = (self.hp.hidden_size, self.hp.hidden_size), ("embed_proj", "hidden_proj")
        fuse = torch.cat([self.new(self.parts(scope, role), shape, self.dtype) for role in roles], dim=1)
        return self.watched(fuse, scope, "fuse")

    def block(self, scope: Scope, kind: LayerKind) -> HyperBlock:
        hidden = self.hp.hidden_size
        mixer_norm, ffn_norm = (self.vector(scope, role, hidden) for role in ("mixer_norm", "ffn_norm"))
        return HyperBlock(
            self.compressed_attention(scope, self.v4.ratios[scope[1]] if scope[0] == "layer" else 0),
            self.moe(scope),
            mixer_norm,
            ffn_norm,
            self.connection(scope, "mixer"),
            self.connection(scope, "ffn"),
            self.hp.norm_eps,
            self.arithmetic,
        )

    def connection(self, scope: Scope, part: str) -> HyperConnection:
        n = self.v4.hyper.streams
        rows = (2 + n) * n
        role = f"{part}_streams"
        kinds = self.vector(scope, f"{role}_scale", 3)
        return HyperConnection(
            self.new(self.parts(scope, role), (rows, n * self.hp.hidden_size), torch.float32),
            self.vector(scope, f"{role}_base", rows),
            kinds.repeat_interleave(torch.tensor((n, n, n * n), device=self.device)),
            self.v4.hyper,
            self.arithmetic,
        )

    def hyper_head(self, scope: Scope) -> HyperHead:
        n = self.v4.hyper.streams
        weight = self.new(self.parts(scope, "streams"), (n, n * self.hp.hidden_size), torch.float32)
        base, scale = self.vector(scope, "streams_base", n), self.vector(scope, "streams_scale", 1)
        return HyperHead(weight, base, scale, self.v4.hyper, self.arithmetic)

    def compressed_attention(self, scope: Scope, ratio: int) -> CompressedAttention:
        hp, v4 = self.hp, self.v4
        width = hp.n_heads * hp.head_dim
        indexer = self.indexer(scope) if ratio == CSA else None
        compressor = self.compressor(scope, "window", ratio, hp.head_dim) if ratio else None
        down = {"query_down": hp.q_lora_rank, "key": hp.head_dim}
        if compressor is not None:
            down |= dict.fromkeys(("window_values", "window_gates"), compressor.width)
        if indexer is not None:
            down |= dict.fromkeys(("index_values", "index_gates"), indexer.compressor.width)
            down["index_shares"] = indexer.n_heads
        out_rows = hp.o_groups * hp.o_lora_rank
        groups = (hp.o_groups, hp.o_lora_rank, width // hp.o_groups)
        weights = CompressedWeights(
            self.matrix(scope, list(down), sum(down.values()), hp.hidden_size),
            self.one(scope, "query_up", width, hp.q_lora_rank),
            self.vector(scope, "query_norm", hp.q_lora_rank),
            self.vector(scope, "key_norm", hp.head_dim),
            self.vector(scope, "sinks", hp.n_heads),
            self.watched(self.new(self.parts(scope, "group_out"), groups, self.dtype), scope, "group_out"),
            self.one(scope, "attention_out", hp.hidden_size, out_rows),
        )
        rope = self.far if ratio else self.near
        return CompressedAttention(weights, v4.window, rope, hp.norm_eps, self.arithmetic, compressor, indexer)

    def compressor(self, scope: Scope, role: str, ratio: int, dim: int) -> Compressor:
        overlap = ratio == CSA
        bias = self.new(self.parts(scope, f"{role}_bias"), (ratio, dim * (2 if overlap else 1)), torch.float32)
        norm = self.vector(scope, f"{role}_norm", dim)
        return Compressor(ratio, overlap, bias, norm, self.far, self.hp.norm_eps, self.arithmetic)

    def indexer(self, scope: Scope) -> Indexer:
        v4 = self.v4
        query = self.one(scope, "index_query", v4.index_heads * v4.index_dim, self.hp.q_lora_rank)
        compressor = self.compressor(scope, "index", CSA, v4.index_dim)
        return Indexer(compressor, query, v4.index_heads, v4.index_top, self.arithmetic)

    def choice(self, scope: Scope) -> tuple[Tensor | None, Tensor | None]:
        if scope[0] != "layer" or scope[1] >= self.v4.hashed:
            return super().choice(scope)
        return None, self.table(scope)

    def table(self, scope: Scope) -> Tensor:
        """[vocab, used] int64: the experts of each token."""
        stored = self.parts(scope, "router_table")[0].tensor
        shape = (self.hp.vocab_size, self.hp.n_experts_used)
        kinds = {"I32": "<i4", "I64": "<i8"}
        if stored.shape != shape or stored.codec not in kinds:
            found = f"{stored.codec} {list(stored.shape)}"
            raise self._damaged(f"tensor {stored.name} is {found}, not I32 or I64 {list(shape)}")
        numbers = np.frombuffer(stored.read(0, stored.nbytes), kinds[stored.codec]).reshape(shape)
        if numbers.min() < 0 or numbers.max() >= self.hp.n_experts:
            raise self._damaged(f"tensor {stored.name} names experts that are not there")
        return torch.from_numpy(numbers.astype(np.int64)).to(self.device)

    def _damaged(self, what: str) -> CorruptError:
        return CorruptError(what, where=self.source.where, hint=f"mtptools validate {self.source.where}")
