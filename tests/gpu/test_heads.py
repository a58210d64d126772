"""Heads on the device: bit-equal to torch's there, near float64's where a norm is, each row by itself; and gates."""

from __future__ import annotations

import pytest
import torch

from mtptools.decoder.kernels import attention, heads
from tests.gpu.cases import DTYPES, on
from tests.gpu.rows import COUNTS, same
from tests.kernels.checks_attention import EPS, Shape, queries_of, text
from tests.kernels.checks_heads import Layer, is_torch, marked, norm_is_near, placed, rows_by_themselves, writes

LAYERS = {
    "27B": Layer(24, 4, 256, 64, gates=24),
    "GLM-4.5-Air": Layer(96, 8, 128, 64),
    "MiMo": Layer(32, 8, 128, 128),
    "adjacent": Layer(3, 1, 80, 40, pairs="adjacent", magnitude=1.25),
    "small": Layer(2, 1, 16, 8),
}
EVERY = [(name, dtype) for name in LAYERS for dtype in DTYPES]


@pytest.mark.parametrize(("device", "name", "dtype"), on(EVERY, [("small", "bfloat16")]))
def test_without_norm_bit_for_bit(device: torch.device, name: str, dtype: str) -> None:
    places = [(0, 1), (62, 5), (1, 160)] if device.type == "cuda" else [(62, 4)]
    for first, rows in places:
        is_torch(LAYERS[name], DTYPES[dtype], first, rows, offset=1, device=device)


@pytest.mark.parametrize(("device", "name"), on(LAYERS, ["small"]))
def test_norm(device: torch.device, name: str) -> None:
    norm_is_near(LAYERS[name], first=61, rows=33 if device.type == "cuda" else 4, device=device)


@pytest.mark.parametrize(("device", "name", "dtype"), on(EVERY, [("small", "float32")]))
def test_rows_by_themselves(device: torch.device, name: str, dtype: str) -> None:
    counts = COUNTS if device.type == "cuda" else (1, 4)
    assert rows_by_themselves(LAYERS[name], DTYPES[dtype], counts, 60, device)


@pytest.mark.parametrize(
    ("device", "dtype", "width"), on([(d, w) for d in DTYPES for w in (576, 36)], [("float16", 5)])
)
def test_write(device: torch.device, dtype: str, width: int) -> None:
    writes(DTYPES[dtype], 2, width, first=60, rows=70 if device.type == "cuda" else 5, device=device)


SHAPES = {
    "27B": Shape(4, 24, 256, 256),
    "GLM-4.5-Air": Shape(8, 96, 128, 128),
    "DeepSeek-V3": Shape(1, 128, 576, 512, shared=True),
    "small": Shape(1, 2, 16, 16),
}


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_slots_and_gates_on_the_device(device: torch.device, name: str) -> None:
    """However many programs are started, and of gates no more than what sigmoid is off by."""
    shape, last = SHAPES[name], [0, 63, 64, 511, 512, 1100] if device.type == "cuda" else [3, 64]
    cache, queries = text(shape, torch.bfloat16, max(last) + 1, device), queries_of(shape, len(last)).to(device)
    wide = 4 * torch.randn(len(last), shape.heads + 1, shape.value_dim, generator=torch.Generator().manual_seed(1))
    gate, ends = wide.to(device)[:, 1:], torch.tensor([-1, *last], device=device)[1:]
    plain = attention.attend(queries, cache, last)
    gated = attention.attend(queries, cache, last, gate=gate)
    for until in (max(last) + 1, 8192 if device.type == "cuda" else 600):
        assert same(attention.attend(queries, cache, ends, until), plain)
        assert same(attention.attend(queries, cache, ends, until, gate), gated)
    want = plain.double() * gate.double().sigmoid()
    assert ((gated - want).abs() <= (16 + 2 * gate.abs()) * EPS * want.abs() + 1e-30).all()


@pytest.mark.gpu
@torch.inference_mode()  # as all that is recorded: torch keeps a tensor from its first recording to the next
def test_in_a_graph() -> None:
    """Recorded once, replayed for other rows of other slots, from the same addresses: the bits of launches."""
    device, layer = torch.device("cuda:0"), LAYERS["27B"]
    fused, norm, table = layer.fused(2).to(device), layer.norm().to(device), layer.rope(device).until(1024)
    caches = [layer.cache(torch.bfloat16, 0, device) for _ in range(2)]
    for cache in caches:
        marked(cache, 700)
    slots = torch.arange(2, device=device)

    def step(cache_number: int) -> torch.Tensor:
        cache = caches[cache_number]
        queries = heads.place(
            *(fused, norm, table, cache.pages, slots),
            offset=1,
            eps=1e-6,
            scale=0.0625,
            n_heads=layer.n_heads,
            n_kv_heads=layer.n_kv_heads,
            dim=layer.dim,
            pairs=layer.pairs,
            dtype=cache.dtype,
        )
        return attention.attend(queries, cache, slots, 1024, fused[:, 28:52])

    for number in (0, 1):
        step(number)  # compiled, and its addresses known, before it is recorded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = step(0)
    for first in (0, 63, 64, 511, 600):
        slots.copy_(torch.tensor([first, first + 1]))
        fused.copy_(layer.fused(2, seed=first + 1))
        graph.replay()
        assert same(recorded, step(1)), first
        assert all(torch.equal(a, b) for a, b in zip(*(cache.chunks for cache in caches), strict=True))


@pytest.mark.parametrize(("device", "name"), on(["27B"], ["small"]))
def test_again(device: torch.device, name: str) -> None:
    """The same launch gives the same bits."""
    layer = LAYERS[name]
    cache, fused, norm = layer.cache(torch.bfloat16, 70, device), layer.fused(5), layer.norm()
    first = placed(layer, fused, norm, cache, [3, 2, 69, 0, 5])
    again = 20 if device.type == "cuda" else 1
    assert all(same(placed(layer, fused, norm, cache, [3, 2, 69, 0, 5]), first) for _ in range(again))
