"""Heads by their kernels, interpreted: bit-equal to torch's, near float64's where a norm is, each row by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mtptools.decoder.attention import Attention, AttentionWeights
from mtptools.decoder.kernels import attention, heads, programs_heads
from mtptools.decoder.ops import Arithmetic
from tests.kernels.checks_attention import EPS
from tests.kernels.checks_heads import (
    LAYERS,
    NORM_EPS,
    is_torch,
    marked,
    norm_is_near,
    placed,
    rows_by_themselves,
    same,
    same_cache,
    writes,
)
from tests.kernels.test_faults import Mutant, mutant

__all__ = ["mutant"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_without_norm_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    """Over the border of a chunk; with an offset such as a head's."""
    is_torch(LAYERS[name], dtype, first=62, rows=5, offset=1)


@pytest.mark.parametrize(("first", "rows"), [(0, 1), (63, 1), (64, 1), (127, 2)])
def test_borders(first: int, rows: int) -> None:
    is_torch(LAYERS["partial"], torch.float32, first, rows, offset=-first)


@pytest.mark.parametrize("name", LAYERS)
def test_norm(name: str) -> None:
    norm_is_near(LAYERS[name], first=61, rows=4)


@pytest.mark.parametrize("name", ["partial", "adjacent"])
def test_rows_by_themselves(name: str) -> None:
    assert rows_by_themselves(LAYERS[name], torch.bfloat16, (1, 2, 6), 63) == 2 * (1 + 2 + 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_write(dtype: torch.dtype) -> None:
    writes(dtype, 2, 36, first=60, rows=7)


def test_no_rows() -> None:
    layer, cache = LAYERS["whole"], LAYERS["whole"].cache(torch.float32, 1)
    nothing = torch.zeros(0, dtype=torch.int64)
    heads.write(torch.zeros(0, 2, 32), cache.pages, nothing, torch.float32)
    table = layer.rope().at(0, 1)[:, :, 0]
    got = heads.place(
        *(layer.fused(0), None, table, cache.pages, nothing),
        offset=0,
        eps=0.0,
        scale=1.0,
        n_heads=4,
        n_kv_heads=2,
        dim=16,
        pairs="halves",
        dtype=torch.float32,
    )
    assert got.shape == (0, 4, 16)


@pytest.mark.parametrize("normed", [False, True])
def test_the_whole_of_attention(normed: bool) -> None:
    """Against `Attention.forward` by torch, whose products are by ones here."""
    layer = LAYERS["partial"]
    width, out = layer.fused(1).numel(), layer.n_heads * layer.head_dim
    norm = layer.norm() if normed else None
    weights = AttentionWeights(torch.eye(width), torch.eye(out), norm, None, gate=True)
    ops = Arithmetic.on(torch.device("cpu"))
    mixer = Attention(weights, layer.n_heads, layer.n_kv_heads, layer.head_dim, layer.rope(), NORM_EPS, ops)
    fused, cache, own = layer.fused(4), layer.cache(torch.float32, 62), layer.cache(torch.float32, 62)
    want = mixer.forward(fused.flatten(1), cache, 65).view(4, layer.n_heads, layer.head_dim)
    marked(own, 4)
    queries = placed(layer, fused, norm, own, [62, 63, 64, 65], offset=3)
    both = layer.n_heads + layer.n_kv_heads
    gate = fused[:, both : both + layer.n_heads]
    got = attention.attend(queries, own, torch.arange(62, 66), 66, gate)
    assert ((got - want).abs() <= 256 * EPS * want.abs().amax()).all()
    assert normed or same_cache(own, cache)


def test_anywhere_in_memory() -> None:
    """Another address is not another result."""
    layer = LAYERS["whole"]
    fused, cache = layer.fused(2), layer.cache(torch.float32, 2)
    moved = torch.empty(fused.numel() + 1)[1:].view_as(fused).copy_(fused)
    assert moved.data_ptr() % 16
    assert same(placed(layer, moved, None, cache, [0, 1]), placed(layer, fused, None, cache, [0, 1]))


def bits() -> None:
    for name in ("partial", "adjacent", "whole"):
        is_torch(LAYERS[name], torch.float16 if name == "whole" else torch.bfloat16, first=62, rows=5, offset=1)


def norms() -> None:
    norm_is_near(LAYERS["partial"], first=61, rows=4)


MUTANTS: list[tuple[str, str, Callable[[], None]]] = [
    ("(slot + offset)", "slot", bits),
    ("(slot + offset)", "(r + offset)", bits),
    ("pages + slot // PAGE", "pages + 0 * slot", bits),
    ("slot % PAGE", "(slot + 1) % PAGE", bits),
    ("(head * PAGE", "(0 * PAGE", bits),
    ("if tl.float16 == cached", "if tl.bfloat16 == cached", bits),
    ("values > HALF_MAX, HALF_MAX", "(values <= HALF_MAX) == 0, HALF_MAX", bits),  # loses a NaN
    ("narrow(values, cached)", "values", bits),  # the interpreter cuts
    ("x * cos - other * sin, x * cos + other * sin", "x * cos + other * sin, x * cos - other * sin", bits),
    ("column ^ 1", "column", bits),
    ("pair, first = column % half", "pair, first = column // 2", bits),
    ("tl.where(turns, turned, x)", "turned", bits),
    ("kv = head - heads", "kv = head * 0", bits),
    ("(total - kv_heads + kv)", "(heads + kv_heads + kv)", bits),  # gates for values
    ("2 * head_dim, head_dim + column", "2 * head_dim, column", bits),
    ("x * scale", "x", bits),
    ("row = fused + r *", "row = fused + 0 * r *", bits),
    (" * (1.0 / head_dim)", "", norms),
    (" + eps", "", norms),
    ("+ eps", "* (1 + eps)", norms),
    ("tl.load(norm + head * head_dim + column", "tl.load(norm + column", norms),
    ("tl.load(norm + head * head_dim + partner", "tl.load(norm + head * head_dim + column", norms),
    ("head * head_stride", "0 * head", lambda: writes(torch.float32, 2, 36, first=60, rows=7)),
    ("r * row_stride", "0 * r", lambda: writes(torch.float32, 2, 36, first=60, rows=7)),
]


@pytest.mark.parametrize(("old", "new", "check"), MUTANTS)
def test_a_wrong_program_is_seen(
    old: str, new: str, check: Callable[[], None], mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "programs", mutant(programs_heads, old, new))
    with pytest.raises(AssertionError):
        check()


def test_a_dependence_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = heads.place

    def wrong(fused: torch.Tensor, *rest: object, **more: object) -> torch.Tensor:
        return honest(fused, *rest, **more) * (1 + (len(fused) > 2) * 2.0**-20)  # type: ignore[arg-type]

    monkeypatch.setattr(heads, "place", wrong)
    with pytest.raises(AssertionError, match="row 0 of 6"):
        rows_by_themselves(LAYERS["whole"], torch.float32, (1, 2, 6), 0)
