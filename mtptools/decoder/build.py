"""Builds trunk and head from one tensor map: fuses what is multiplied together, holds every weight once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mtptools.decoder.attention import AttentionWeights, FullAttention, Rope
from mtptools.decoder.deltanet import DeltaNet, DeltaNetWeights
from mtptools.decoder.moe import Mlp, MlpWeights, Moe, MoeWeights
from mtptools.decoder.mtp_head import Head, HeadLayer, HeadWiring
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.parts import Part, Scope, WeightSource, fill
from mtptools.decoder.trunk import Block, Trunk
from mtptools.errors import SystemFailure
from mtptools.hparams import HParams

__all__ = ["Builder"]


class Builder:
    """Weights of one source, in one dtype on one device; norms, routers and other vectors in float32."""

    def __init__(self, source: WeightSource, hparams: HParams, device: torch.device, dtype: torch.dtype) -> None:
        self.source, self.hp, self.device, self.dtype = source, hparams, device, dtype
        self.arithmetic = Arithmetic.on(device)
        self.rope = Rope(hparams.rope_theta, hparams.rope_dim, device)

    def new(self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        try:
            out = torch.empty(shape, dtype=dtype, device=self.device)
        except (RuntimeError, MemoryError) as error:
            raise SystemFailure(f"out of memory: {error}", where=self.source.where, hint="--dtype bfloat16") from error
        fill(out.view(-1, shape[-1]), parts, self.source.where)
        return out

    def matrix(self, parts: Sequence[Part], rows: int, cols: int) -> torch.Tensor:
        return self.new(parts, (rows, cols), self.dtype)

    def one(self, scope: Scope, role: str, rows: int, cols: int) -> torch.Tensor:
        return self.matrix([self.source.part(scope, role)], rows, cols)

    def vector(self, scope: Scope, role: str, size: int) -> torch.Tensor:
        return self.new([self.source.part(scope, role)], (1, size), torch.float32)[0]

    def trunk(self) -> Trunk:
        hp, top = self.hp, ("top", 0)
        embed = self.one(top, "embed", hp.vocab_size, hp.hidden_size)
        tied = hp.tie_embeddings
        output = embed if tied else self.one(top, "output", hp.vocab_size, hp.hidden_size)
        blocks = tuple(self.block(("layer", n), kind) for n, kind in enumerate(hp.layer_types))
        norm = self.vector(top, "final_norm", hp.hidden_size)
        return Trunk(embed, blocks, norm, output, hp.norm_eps, self.arithmetic)

    def block(self, scope: Scope, kind: str) -> Block:
        hp = self.hp
        mixer = self.attention(scope) if kind == "full" else self.deltanet(scope)
        mlp = self.moe(scope) if hp.n_experts else self.mlp(scope)
        before, between = (self.vector(scope, role, hp.hidden_size) for role in ("mixer_norm", "mlp_norm"))
        return Block(mixer, mlp, before, between, hp.norm_eps, self.arithmetic)

    def attention(self, scope: Scope) -> FullAttention:
        hp, source = self.hp, self.source
        heads, kv_heads, dim = hp.n_heads, hp.n_kv_heads, hp.head_dim
        both = source.part(scope, "query_gate")  # per head: dim rows of query, dim rows of gate
        queries = [both.rows(2 * h * dim, (2 * h + 1) * dim) for h in range(heads)]
        gates = [both.rows((2 * h + 1) * dim, (2 * h + 2) * dim) for h in range(heads)]
        if both.n_rows != 2 * heads * dim:
            queries = [both]  # of a shape that `fill` refuses by name
        parts = [*queries, source.part(scope, "key"), *gates, source.part(scope, "value")]
        norm = [source.part(scope, "query_norm")] * heads + [source.part(scope, "key_norm")] * kv_heads
        weights = AttentionWeights(
            self.matrix(parts, 2 * (heads + kv_heads) * dim, hp.hidden_size),
            self.one(scope, "attention_out", hp.hidden_size, heads * dim),
            self.new(norm, (heads + kv_heads, dim), torch.float32),
        )
        return FullAttention(weights, heads, kv_heads, self.rope, hp.norm_eps, self.arithmetic)

    def deltanet(self, scope: Scope) -> DeltaNet:
        hp, source = self.hp, self.source
        v_size = hp.linear_v_heads * hp.linear_v_head_dim
        channels = 2 * hp.linear_k_heads * hp.linear_k_head_dim + v_size
        fused = [source.part(scope, f"delta_{name}") for name in ("qkv", "z", "b", "a")]
        conv = self.new([source.part(scope, "delta_conv")], (channels, hp.conv_kernel), torch.float32)
        weights = DeltaNetWeights(
            self.matrix(fused, channels + v_size + 2 * hp.linear_v_heads, hp.hidden_size),
            conv.T.contiguous(),
            self.vector(scope, "delta_decay", hp.linear_v_heads),
            self.vector(scope, "delta_dt", hp.linear_v_heads),
            self.vector(scope, "delta_norm", hp.linear_v_head_dim),
            self.one(scope, "delta_out", hp.hidden_size, v_size),
        )
        sizes = (hp.linear_k_heads, hp.linear_v_heads, hp.linear_k_head_dim, hp.linear_v_head_dim)
        return DeltaNet(weights, *sizes, hp.norm_eps, self.arithmetic)

    def mlp_weights(self, scope: Scope, prefix: str, size: int) -> MlpWeights:
        gate_up = [self.source.part(scope, f"{prefix}{name}") for name in ("gate", "up")]
        hidden = self.hp.hidden_size
        return MlpWeights(self.matrix(gate_up, 2 * size, hidden), self.one(scope, f"{prefix}down", hidden, size))

    def mlp(self, scope: Scope) -> Mlp:
        return Mlp(self.mlp_weights(scope, "", self.hp.intermediate_size), self.arithmetic)

    def moe(self, scope: Scope) -> Moe:
        hp, source = self.hp, self.source
        n, size, hidden = hp.n_experts, hp.moe_intermediate_size, hp.hidden_size
        routers = [source.part(scope, "router"), source.part(scope, "switch")]
        weights = MoeWeights(
            self.new(routers, (n + 1, hidden), torch.float32),
            self.new(source.experts(scope, "expert_gate_up"), (n, 2 * size, hidden), self.dtype),
            self.new(source.experts(scope, "expert_down"), (n, hidden, size), self.dtype),
            self.mlp_weights(scope, "shared_", hp.shared_expert_intermediate_size),
        )
        return Moe(weights, hp.n_experts_used, self.arithmetic)

    def head(self, trunk: Trunk, wiring: HeadWiring) -> Head:
        hp, first = self.hp, ("head", 0)
        embed, output = trunk.embed, trunk.output
        if self.source.has(first, "head_embed"):
            embed = self.one(first, "head_embed", hp.vocab_size, hp.hidden_size)
        if self.source.has(first, "head_output"):
            output = self.one(first, "head_output", hp.vocab_size, hp.hidden_size)
        layers = tuple(self.head_layer(("head", d)) for d in range(self.source.head_depth))
        return Head(layers, embed, output, wiring, hp.norm_eps, self.arithmetic)

    def head_layer(self, scope: Scope) -> HeadLayer:
        hidden = self.hp.hidden_size
        return HeadLayer(
            self.one(scope, "fuse", hidden, 2 * hidden),
            self.vector(scope, "embed_norm", hidden),
            self.vector(scope, "hidden_norm", hidden),
            self.block(scope, "full"),
            self.vector(scope, "head_norm", hidden),
        )
