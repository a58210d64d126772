"""Builds trunk and head from one tensor map: fuses what is multiplied together, holds every weight once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, TypeVar

import torch

from mtptools.decoder.attention import Attention, AttentionWeights
from mtptools.decoder.deltanet import DeltaNet, DeltaNetWeights
from mtptools.decoder.draft_map import damaged_map
from mtptools.decoder.hold import hold
from mtptools.decoder.latent import LatentAttention, LatentWeights
from mtptools.decoder.moe import Mlp, MlpWeights, Moe, MoeWeights
from mtptools.decoder.mtp_head import Head, HeadLayer, HeadWiring
from mtptools.decoder.offload import Offloaded
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.packed import Packed, Weight
from mtptools.decoder.parts import Part, Scope, WeightSource, loaded
from mtptools.decoder.pipeline import Elsewhere
from mtptools.decoder.recorder import Recorder, Recording
from mtptools.decoder.resident import Resident
from mtptools.decoder.rope import Rope
from mtptools.decoder.settings import LayerKind, Settings
from mtptools.decoder.trunk import Block, Layer, Mixer, Trunk
from mtptools.decoder.weights_gguf import gguf_columns
from mtptools.errors import CorruptError
from mtptools.hparams import HParams
from mtptools.vocab.maps import DraftVocabulary

__all__ = ["Builder"]

W = TypeVar("W", bound=Weight)

_VALIDATE: Final = "check the sizes in config.json or the GGUF's metadata: mtptools validate"


class Builder:
    """Weights of one source, in one dtype on one device; norms, routers and other vectors in float32.

    weights   how matrices are held, one of `hold.HOW`
    recorder  is told what every matrix is multiplied with, see `recorder.py`
    """

    def __init__(
        self,
        source: WeightSource,
        hparams: HParams,
        settings: Settings,
        device: torch.device,
        dtype: torch.dtype,
        weights: str = "loaded",
        recorder: Recorder | None = None,
    ) -> None:
        self.source, self.hp, self.settings, self.device, self.dtype = source, hparams, settings, device, dtype
        self.weights, self.recorder = weights, recorder
        self.arithmetic = Arithmetic.on(device) if recorder is None else Recording.on(device, recorder)
        self.rope = Rope(settings.rope, device)
        self.layers: Sequence[Builder] = ()
        """Who builds each layer of the trunk, where it is another; the first one builds the embedding too."""

    def new(self, parts: Sequence[Part], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if 0 in shape:
            raise CorruptError(f"a weight would have the shape {list(shape)}", where=self.source.where, hint=_VALIDATE)
        return loaded(parts, shape, dtype, self.device, self.source.where)

    def parts(self, scope: Scope, *roles: str) -> list[Part]:
        return [part for role in roles for part in self.source.parts(scope, role)]

    def weight(self, parts: Sequence[Part], shape: tuple[int, ...]) -> Weight:
        """A matrix, or a stack of them, whose values are of the model's dtype."""
        if self.weights == "loaded":
            return self.new(parts, shape, self.dtype)
        return hold(self.weights, parts, shape, self.dtype, self.device, self.source.where)

    def matrix(self, scope: Scope, roles: Sequence[str], rows: int, cols: int) -> Weight:
        """The roles one under the other."""
        return self.watched(self.weight(self.parts(scope, *roles), (rows, cols)), scope, *roles)

    def one(self, scope: Scope, role: str, rows: int, cols: int) -> Weight:
        return self.matrix(scope, [role], rows, cols)

    def watched(self, weight: W, scope: Scope, *roles: str) -> W:
        """The weight itself; the recorder is told which tensors of a GGUF it is, or would be."""
        if self.recorder is not None and scope[0] != "top":
            names = [name for role in roles for name in self.source.gguf_names(scope, role)]
            self.recorder.watch(weight, scope, names, gguf_columns(self.hp, roles[0]))
        return weight

    def vector(self, scope: Scope, role: str, size: int) -> torch.Tensor:
        return self.new(self.parts(scope, role), (1, size), torch.float32)[0]

    def trunk(self, *, layers: bool = True) -> Trunk:
        """The trunk; without its layers where they are to be built one by one (`block`)."""
        hp, top = self.hp, ("top", 0)
        embed = self.embedding()
        output = embed if hp.tie_embeddings else self.one(top, "output", hp.vocab_size, hp.hidden_size)
        kinds = self.settings.layers if layers else ()
        blocks = tuple(self.layer(n, kind) for n, kind in enumerate(kinds))
        norm = self.vector(top, "final_norm", hp.hidden_size)
        return Trunk(embed, blocks, norm, output, hp.norm_eps, self.arithmetic)

    def embedding(self) -> Weight:
        """Where the first layer is, unless products are made with it here; its rows come here."""
        first = self if self.hp.tie_embeddings or not self.layers else self.layers[0]
        embed = first.one(("top", 0), "embed", self.hp.vocab_size, self.hp.hidden_size)
        if isinstance(embed, Packed | Offloaded):
            return replace(embed, device=self.device)
        if isinstance(embed, torch.Tensor | Resident) and first.device != self.device:
            return Offloaded(embed, self.device)
        return embed

    def layer(self, number: int, kind: LayerKind) -> Layer:
        """A layer of the trunk, and the residual stream's way to it; after the last one it is here."""
        if not self.layers:
            return self.block(("layer", number), kind)
        builder = self.layers[number]
        block = builder.block(("layer", number), kind)
        last = number == len(self.layers) - 1
        return Elsewhere(block, builder.device, self.device if last else builder.device)

    def block(self, scope: Scope, kind: LayerKind) -> Layer:
        makers: dict[str, Callable[[Scope], Mixer]] = {
            "attention": self.attention,
            "latent": self.latent,
            "deltanet": self.deltanet,
        }
        ffn = self.moe(scope) if kind.ffn == "moe" else self.mlp(scope)
        norms = [self.vector(scope, role, self.hp.hidden_size) for role in ("mixer_norm", "ffn_norm")]
        return Block(makers[kind.mixer](scope), ffn, norms[0], norms[1], self.hp.norm_eps, self.arithmetic)

    def attention(self, scope: Scope) -> Attention:
        hp, source = self.hp, self.source
        heads, kv_heads, dim = hp.n_heads, hp.n_kv_heads, hp.head_dim
        queries, gates = source.parts(scope, "query"), []
        if self.settings.gate and queries[0].n_rows == 2 * heads * dim:  # else a shape that `fill` refuses by name
            both = queries[0]  # per head: dim rows of query, dim rows of gate
            queries = [both.rows(2 * h * dim, (2 * h + 1) * dim) for h in range(heads)]
            gates = [both.rows((2 * h + 1) * dim, (2 * h + 2) * dim) for h in range(heads)]
        parts = [*queries, *source.parts(scope, "key"), *gates, *source.parts(scope, "value")]
        rows = (heads * (2 if self.settings.gate else 1) + 2 * kv_heads) * dim
        norm, bias = None, None
        if self._there(self.settings.qk_norm, scope, "query_norm"):
            query, key = source.parts(scope, "query_norm"), source.parts(scope, "key_norm")
            norm = self.new(query * heads + key * kv_heads, (heads + kv_heads, dim), torch.float32)
        if self._there(self.settings.biases, scope, "query_bias"):
            sizes = {"query_bias": heads * dim, "key_bias": kv_heads * dim, "value_bias": kv_heads * dim}
            bias = torch.cat([self.vector(scope, role, size) for role, size in sizes.items()])
        weights = AttentionWeights(
            self.watched(self.weight(parts, (rows, hp.hidden_size)), scope, "query", "key", "value"),
            self.one(scope, "attention_out", hp.hidden_size, heads * dim),
            norm,
            bias,
            self.settings.gate,
        )
        return Attention(weights, heads, kv_heads, dim, self.rope, hp.norm_eps, self.arithmetic)

    def _there(self, declared: bool | None, scope: Scope, role: str) -> bool:
        """Where nothing is declared the tensors say: a bias or a norm is there or it is not."""
        return self.source.has(scope, role) if declared is None else declared

    def latent(self, scope: Scope) -> LatentAttention:
        hp = self.hp
        heads, rank, low = hp.n_heads, hp.kv_lora_rank, hp.q_lora_rank
        width = heads * (hp.qk_nope_head_dim + hp.qk_rope_head_dim)
        queries = "query_down" if low else "query"
        rows = (low or width) + rank + hp.qk_rope_head_dim
        key_up, value_up = self.latent_up(scope)
        weights = LatentWeights(
            self.matrix(scope, [queries, "latent_down"], rows, hp.hidden_size),
            self.one(scope, "query_up", width, low) if low else None,
            self.vector(scope, "query_norm", low) if low else None,
            self.vector(scope, "latent_norm", rank),
            key_up,
            value_up,
            self.one(scope, "attention_out", hp.hidden_size, heads * hp.v_head_dim),
        )
        return LatentAttention(weights, self.rope, hp.norm_eps, self.arithmetic)

    def latent_up(self, scope: Scope) -> tuple[torch.Tensor, torch.Tensor]:
        """(key_up, value_up): taken apart already, or out of kv_b, which has each head's keys, then its values."""
        hp = self.hp
        heads, rank, nope, own = hp.n_heads, hp.kv_lora_rank, hp.qk_nope_head_dim, hp.v_head_dim
        if not self.source.has(scope, "latent_up"):
            keys = self.new(self.parts(scope, "key_up"), (heads, rank, nope), self.dtype)
            values = self.new(self.parts(scope, "value_up"), (heads, own, rank), self.dtype)
        else:
            both = self.new(self.parts(scope, "latent_up"), (heads, nope + own, rank), self.dtype)
            keys, values = both[:, :nope].transpose(1, 2).contiguous(), both[:, nope:].contiguous()
        return self.watched(keys, scope, "key_up"), self.watched(values, scope, "value_up")

    def deltanet(self, scope: Scope) -> DeltaNet:
        hp = self.hp
        v_size = hp.linear_v_heads * hp.linear_v_head_dim
        channels = 2 * hp.linear_k_heads * hp.linear_k_head_dim + v_size
        fused = [f"delta_{name}" for name in ("qkv", "z", "b", "a")]
        conv = self.new(self.parts(scope, "delta_conv"), (channels, hp.conv_kernel), torch.float32)
        weights = DeltaNetWeights(
            self.matrix(scope, fused, channels + v_size + 2 * hp.linear_v_heads, hp.hidden_size),
            conv.T.contiguous(),
            self.vector(scope, "delta_decay", hp.linear_v_heads),
            self.vector(scope, "delta_dt", hp.linear_v_heads),
            self.vector(scope, "delta_norm", hp.linear_v_head_dim),
            self.one(scope, "delta_out", hp.hidden_size, v_size),
        )
        sizes = (hp.linear_k_heads, hp.linear_v_heads, hp.linear_k_head_dim, hp.linear_v_head_dim)
        return DeltaNet(weights, *sizes, hp.norm_eps, self.arithmetic)

    def mlp_weights(self, scope: Scope, prefix: str, size: int) -> MlpWeights:
        hidden = self.hp.hidden_size
        gate_up = self.matrix(scope, [f"{prefix}gate", f"{prefix}up"], 2 * size, hidden)
        return MlpWeights(gate_up, self.one(scope, f"{prefix}down", hidden, size))

    def mlp(self, scope: Scope) -> Mlp:
        return Mlp(self.mlp_weights(scope, "", self.hp.intermediate_size), self.arithmetic)

    def moe(self, scope: Scope) -> Moe:
        hp, routing = self.hp, self.settings.routing
        if routing is None:
            raise CorruptError("layers have experts, and their number is 0", where=self.source.where, hint=_VALIDATE)
        n, size, hidden = hp.n_experts, hp.moe_intermediate_size, hp.hidden_size
        switch = hp.shared_expert_intermediate_size
        shared = switch or hp.n_shared_experts * size
        routers = ["router", "switch"] if switch else ["router"]
        weights = MoeWeights(
            self.new(self.parts(scope, *routers), (n + len(routers) - 1, hidden), torch.float32),
            self.experts(scope, "expert_gate_up", (n, 2 * size, hidden)),
            self.experts(scope, "expert_down", (n, hidden, size)),
            self.mlp_weights(scope, "shared_", shared) if shared else None,
            bool(switch),
            *self.choice(scope),
        )
        return Moe(weights, routing, self.arithmetic)

    def experts(self, scope: Scope, role: str, shape: tuple[int, int, int]) -> Weight:
        return self.watched(self.weight(self.parts(scope, role), shape), scope, role)

    def choice(self, scope: Scope) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """How experts are chosen beside their scores: (bias, table) of `MoeWeights`."""
        scored = self.settings.routing is not None and self.settings.routing.scoring != "softmax"
        return self.vector(scope, "router_bias", self.hp.n_experts) if scored else None, None

    def beside(self, trunk: Trunk) -> Trunk:
        """The trunk as the head of a sidecar GGUF sees it: with the embedding and output matrix of that file."""
        top = ("top", 0)
        embed = self._own(top, "embed", [trunk.embed])
        if self.vocabulary is not None:  # then its output matrix is the head's alone
            return replace(trunk, embed=embed)
        if self.source.has(top, "embed") and not self.source.has(top, "output"):
            return replace(trunk, embed=embed, output=embed)
        return replace(trunk, embed=embed, output=self._own(top, "output", [trunk.output, embed]))

    def head(self, trunk: Trunk, wiring: HeadWiring) -> Head:
        layers: list[HeadLayer] = []
        for d in range(self.source.head_depth):
            layers.append(self.head_layer(("head", d), trunk, layers))
        return Head(tuple(layers), wiring, self.hp.norm_eps, self.arithmetic)

    def head_layer(self, scope: Scope, trunk: Trunk, before: Sequence[HeadLayer]) -> HeadLayer:
        hidden = self.hp.hidden_size
        if self.recorder is not None:
            self.recorder.outputs.append(self.source.gguf_names(scope, "head_output"))
            own = self.source.has(scope, "head_embed")
            self.recorder.embeds.append(self.source.gguf_names(scope, "head_embed") if own else ())
        embeds = [trunk.embed, *(b.embed for b in before)]
        return HeadLayer(
            self.fusion(scope),
            self.vector(scope, "embed_norm", hidden),
            self.vector(scope, "hidden_norm", hidden),
            self.block(scope, self.settings.head),
            self.vector(scope, "head_norm", hidden),
            self._own(scope, "head_embed", embeds),
            self.head_output(scope, trunk, before),
            d2t=None if self.vocabulary is None else torch.tensor(self.vocabulary.ids, device=self.device),
        )

    @cached_property
    def vocabulary(self) -> DraftVocabulary | None:
        """What the head is reduced to."""
        return self.source.vocabulary()

    def head_output(self, scope: Scope, trunk: Trunk, before: Sequence[HeadLayer]) -> Weight:
        """What a layer drafts with: [vocab, hidden], or [draft, hidden], its own or that of its sidecar."""
        others = [layer.output for layer in before]
        if self.vocabulary is None:
            return self._own(scope, "head_output", [trunk.output, *others])
        at, role = (scope, "head_output") if self.source.has(scope, "head_output") else (("top", 0), "output")
        if at != scope and not (self.source.sidecar and self.source.has(at, role)):
            raise damaged_map("d2t is there, but no output matrix of the head's own", self.source.where)
        parts, n = self.parts(at, role), len(self.vocabulary)
        if sum(part.n_rows for part in parts) != n:
            stored = parts[0].tensor
            raise damaged_map(
                f"d2t names {n} tokens, {stored.name} has the shape {list(stored.shape)}", self.source.where
            )
        return self._own(at, role, others, n)

    def fusion(self, scope: Scope) -> torch.Tensor:
        """[hidden, 2 hidden] of an MTP layer."""
        fuse = self.new(self.parts(scope, "fuse"), (self.hp.hidden_size, 2 * self.hp.hidden_size), self.dtype)
        return self.watched(fuse, scope, "fuse")

    def _own(self, scope: Scope, role: str, others: Sequence[Weight], rows: int = 0) -> Weight:
        """A matrix of the head's own; one of `others` (the trunk's first) when there is none, or it is its copy."""
        if not self.source.has(scope, role):
            return others[0]
        shape = (rows or self.hp.vocab_size, self.hp.hidden_size)
        own = Packed(tuple(self.parts(scope, role)), shape, self.dtype, self.device, self.source.where)
        same = next((other for other in others if not isinstance(other, Packed) and own.equals(other)), None)
        return self.weight(own.parts, shape) if same is None else same
