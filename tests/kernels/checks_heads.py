"""What holds of heads that are normed, turned and kept by kernels; the faults put in on purpose must break it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.kernels import heads
from mtptools.decoder.rope import Rope
from mtptools.decoder.settings import RopeSettings
from tests.kernels.checks_attention import CPU, EPS, noise

NORM_EPS: Final = 1e-3  # large enough to be missed
MARK: Final = 7.0  # in slots that are to be written


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's sizes; `gates` more heads between keys and values."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    pairs: str = "halves"
    gates: int = 0
    magnitude: float = 1.0

    def fused(self, rows: int, seed: int = 1) -> Tensor:
        return 2 * noise(rows, self.n_heads + 2 * self.n_kv_heads + self.gates, self.head_dim, seed=seed)

    def norm(self) -> Tensor:
        return 1 + noise(self.n_heads + self.n_kv_heads, self.head_dim, seed=2) / 4

    def rope(self, device: torch.device = CPU) -> Rope:
        return Rope(RopeSettings(1e4, self.dim, self.pairs, magnitude=self.magnitude), device)

    def cache(self, dtype: torch.dtype, length: int, device: torch.device = CPU) -> KVCache:
        cache = KVCache(self.n_kv_heads, self.head_dim, self.head_dim, dtype, device)
        cache.append(noise(length, *cache.shape[::2], seed=3).to(device))
        return cache


LAYERS: Final = {
    "partial": Layer(3, 1, 32, 16, gates=3),  # Qwen3.5
    "whole": Layer(4, 2, 16, 16),
    "adjacent": Layer(2, 2, 24, 20, pairs="adjacent", magnitude=1.25),  # no power of two
    "odd": Layer(1, 1, 40, 24, gates=1),
}


def placed(
    layer: Layer, fused: Tensor, norm: Tensor | None, cache: KVCache, slots: Sequence[int], offset: int = 0
) -> Tensor:
    """Queries, of keys and values that go to slots of a cache: there are chunks for them already."""
    rope, device = layer.rope(cache.device), cache.device
    rope.at(max(slots) + offset, 1)
    return heads.place(
        fused.to(device),
        None if norm is None else norm.to(device),
        rope.table,
        cache.pages,
        torch.tensor(slots, device=device),
        offset=offset,
        eps=NORM_EPS,
        scale=layer.head_dim**-0.5,
        n_heads=layer.n_heads,
        n_kv_heads=layer.n_kv_heads,
        dim=layer.dim,
        pairs=layer.pairs,
        dtype=cache.dtype,
    )


def by_torch(layer: Layer, fused: Tensor, norm: Tensor | None, cache: KVCache, position: int) -> Tensor:
    """The same of rows that are appended: the lines of `Attention.forward`."""
    both = layer.n_heads + layer.n_kv_heads
    qk = fused[:, :both]
    if norm is not None:
        qk = qk * (qk.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt() * norm
    qk = layer.rope(cache.device).rotate(qk, position)
    cache.append(torch.cat((qk[:, layer.n_heads :], fused[:, -layer.n_kv_heads :]), dim=-1))
    return qk[:, : layer.n_heads] * layer.head_dim**-0.5


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, zeros' signs too; one NaN is as good as another."""
    ints = {4: torch.int32, 2: torch.int16}[a.element_size()]
    bits = a.contiguous().view(ints) == b.contiguous().view(ints)
    return a.shape == b.shape and bool((bits | (a.isnan() & b.isnan())).all())


def same_cache(a: KVCache, b: KVCache) -> bool:
    return len(a.chunks) == len(b.chunks) and all(same(x, y) for x, y in zip(a.chunks, b.chunks, strict=True))


def marked(cache: KVCache, rows: int) -> None:
    """Chunks for so many rows more, whose slots are not what they will be."""
    cache.append(torch.full((rows, *cache.shape[::2]), MARK, device=cache.device))


def is_torch(layer: Layer, dtype: torch.dtype, first: int, rows: int, offset: int, device: torch.device = CPU) -> None:
    """Without a norm: every bit of the queries and of the cache, whatever order rows stand in."""
    fused = layer.fused(rows).to(device)
    fused[0, :, 0], fused[0, :, -1] = 1e6, -0.0  # no half; a zero that may not be one of a sum
    fused[0, -1, 1], fused[0, -1, 2], fused[0, -1, 3] = -1e6, float("nan"), float("inf")
    wanted, cache = layer.cache(dtype, first, device), layer.cache(dtype, first, device)
    queries = by_torch(layer, fused, None, wanted, first + offset)
    marked(cache, rows)
    order = [(3 * row + 1) % rows for row in range(rows)]
    assert sorted(order) == list(range(rows))
    got = placed(layer, fused[order], None, cache, [first + row for row in order], offset)
    assert same(got, queries[order])
    assert same_cache(cache, wanted)


def norm_is_near(layer: Layer, first: int, rows: int, device: torch.device = CPU) -> None:
    """Queries and keys near float64's, and torch's; values are not normed."""
    fused, norm = layer.fused(rows).to(device), layer.norm().to(device)
    cache, other = (layer.cache(torch.float32, first, device) for _ in range(2))
    by = by_torch(layer, fused, norm, other, first)
    marked(cache, rows)
    queries = placed(layer, fused, norm, cache, list(range(first, first + rows)))
    kept = torch.cat(cache.chunks, 1)[:, first : first + rows].transpose(0, 1)
    kept_by = torch.cat(other.chunks, 1)[:, first : first + rows].transpose(0, 1)
    got, torch_got = (
        torch.cat((q / layer.head_dim**-0.5, k[..., : layer.head_dim]), 1) for q, k in ((queries, kept), (by, kept_by))
    )
    assert same(kept[..., layer.head_dim :].contiguous(), fused[:, -layer.n_kv_heads :].contiguous())
    x = fused[:, : layer.n_heads + layer.n_kv_heads].double()
    want, size = _turned(layer, x * (x.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt() * norm.double(), first)
    # A sum of squares has a rounding a value, which its root halves; some more for the factors, two products, a sum.
    bound = (layer.head_dim / 2 + 12) * EPS * size
    assert ((got - want).abs() <= bound).all()
    assert ((got - torch_got).abs() <= 2 * bound).all()
    assert (got - want).abs().max() > 0  # it was not compared with itself


def _turned(layer: Layer, x: Tensor, position: int) -> tuple[Tensor, Tensor]:
    """Pair by pair, as complex numbers, in float64; and how large what was added up is."""
    cos, sin = (part[:, 0].double() for part in layer.rope(x.device).at(position, len(x)))
    half, out, size = layer.dim // 2, x.clone(), x.abs()
    for i in range(half):
        low, high = (2 * i, 2 * i + 1) if layer.pairs == "adjacent" else (i, i + half)
        turned = torch.complex(x[..., low], x[..., high]) * torch.complex(cos[:, i], sin[:, i])[:, None]
        out[..., low], out[..., high] = turned.real, turned.imag
        size[..., low] = size[..., high] = (x[..., low].abs() + x[..., high].abs()) * layer.magnitude
    return out, size


def rows_by_themselves(
    layer: Layer, dtype: torch.dtype, counts: Sequence[int], first: int, device: torch.device = CPU
) -> int:
    """A row alone, and first, last and between others, small and large: queries and what is kept; comparisons."""
    fused, norm, tried = layer.fused(1, seed=9), layer.norm(), 0
    alone_cache = layer.cache(dtype, 0, device)
    marked(alone_cache, first + 1)
    alone = placed(layer, fused, norm, alone_cache, [first])
    chunk, slot = divmod(first, CHUNK)
    for count in counts:
        for filler in (torch.zeros_like(layer.fused(count)), 1e3 * layer.fused(count, seed=count)):
            for place in sorted({0, count // 3, count - 1}):
                batch, cache = filler.clone(), layer.cache(dtype, 0, device)
                batch[place] = fused[0]
                marked(cache, first + count)
                slots = [first + (row - place) % count for row in range(count)]
                assert same(placed(layer, batch, norm, cache, slots)[place], alone[0]), f"row {place} of {count}"
                assert same(cache.chunks[chunk][:, slot], alone_cache.chunks[chunk][:, slot])
                tried += 1
    return tried


def writes(dtype: torch.dtype, n_kv_heads: int, width: int, first: int, rows: int, device: torch.device = CPU) -> None:
    """Rows in any order, from any strides, as `KVCache.append` does it in its own."""
    values = 3 * noise(rows, n_kv_heads, width, seed=4).to(device)
    values[0, 0, :4] = torch.tensor([1e6, -1e6, float("nan"), float("-inf")])
    caches = [KVCache(n_kv_heads, width, 0, dtype, device, shared=width) for _ in range(2)]
    for cache in caches:
        cache.append(noise(first, n_kv_heads, width, seed=5).to(device))
    wanted, cache = caches
    wanted.append(values)
    marked(cache, rows)
    order = [(3 * row + 1) % rows for row in range(rows)]
    wide = torch.full((rows, 2 * n_kv_heads + 1, width), MARK, device=device)
    wide[:, 1::2] = values[order]
    slots = torch.tensor([first + row for row in order], device=device)
    heads.write(wide[:, 1::2], cache.pages, slots, dtype)
    assert same_cache(cache, wanted)
