"""Attention by its kernels, interpreted: near the exact one, each row by itself, whatever lies beyond its sight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mtptools.decoder import attention as decoder
from mtptools.decoder import compressed, kernels, selftest
from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.kernels import attention, programs_attention
from mtptools.decoder.ops import Arithmetic
from mtptools.errors import SystemFailure
from tests.kernels.checks_attention import (
    SHAPES,
    Shape,
    at_every_place,
    exact,
    is_near,
    nothing_beyond_sight,
    queries_of,
    sights_of,
    sink_is_near,
    text,
)
from tests.kernels.test_faults import Mutant, mutant

__all__ = ["mutant"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CONTEXTS = (1, 63, 64, 65, 200)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_near(name: str, dtype: torch.dtype) -> None:
    is_near(SHAPES[name], dtype, [n - 1 for n in CONTEXTS])


def test_over_the_edges_of_segments() -> None:
    is_near(SHAPES["one head"], torch.float32, [510, 511, 512, 513, 1023, 1024, 1100])


@pytest.mark.parametrize("name", ["grouped", "latent"])
def test_a_row_by_itself(name: str) -> None:
    cache = text(SHAPES[name], torch.bfloat16, 65)
    at_every_place(cache, SHAPES[name], (1, 2, 5, 16, 33), [64, 63, 0])


def test_over_several_segments_by_itself() -> None:
    cache = text(SHAPES["one head"], torch.float32, 1100)
    at_every_place(cache, SHAPES["one head"], (1, 3), [1099, 511, 512])


@pytest.mark.parametrize("name", ["grouped", "latent"])
def test_what_a_row_does_not_see(name: str) -> None:
    nothing_beyond_sight(SHAPES[name], 70)


def test_scratch_for_a_row_or_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go in as many launches as scratch memory asks for."""
    shape = SHAPES["grouped"]
    cache, queries = text(shape, torch.float32, 80), queries_of(shape, 5)
    whole = attention.attend(queries, cache, [3, 70, 64, 0, 79])
    for rows in (0, 1, 2):
        monkeypatch.setattr(attention, "SCRATCH", rows * shape.heads * shape.value_dim * 4)
        assert torch.equal(attention.attend(queries, cache, [3, 70, 64, 0, 79]), whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sinks(dtype: torch.dtype) -> None:
    sink_is_near(dtype)


def test_sinks_by_rows() -> None:
    """One row's window, whose pass starts at another chunk, and beside it keys that only the other rows see."""
    queries, sinks, sights = sights_of(torch.bfloat16, rows=5)
    together = attention.attend_sink(queries, sinks, sights)
    for row in range(5):
        alone = [(cache, first, seen[row : row + 1]) for cache, first, seen in sights]
        assert torch.equal(attention.attend_sink(queries[row : row + 1], sinks, alone)[0], together[row])
        fewer = []
        for cache, first, seen in alone:  # chunks at both ends that the row does not see are not looked at
            chunks = seen.view(-1, CHUNK).any(1).nonzero().flatten().tolist() or [0]
            fewer.append((cache, first + chunks[0], seen[:, chunks[0] * CHUNK : (chunks[-1] + 1) * CHUNK]))
        assert torch.equal(attention.attend_sink(queries[row : row + 1], sinks, fewer)[0], together[row])


def test_a_row_that_sees_the_sink_alone() -> None:
    queries, sinks, sights = sights_of(torch.float32, rows=2)
    blind = [(cache, first, torch.zeros_like(seen)) for cache, first, seen in sights]
    assert torch.equal(attention.attend_sink(queries, sinks, blind), torch.zeros_like(queries))


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # numpy's, in the interpreter
def test_what_is_not_finite_is_not_hidden() -> None:
    shape = SHAPES["one head"]
    cache, queries = text(shape, torch.float32, 70), queries_of(shape, 1)
    for broken in (float("nan"), float("inf")):
        assert attention.attend(queries * broken, cache, [69]).isnan().all()
    cache.chunks[1][:, 3] = float("nan")
    assert attention.attend(queries, cache, [69]).isnan().all()


def test_queries_anywhere_in_memory() -> None:
    """Another address, and another order in memory, is not another program."""
    shape = SHAPES["grouped"]
    cache, queries = text(shape, torch.float32, 10), queries_of(shape, 2)
    wanted = attention.attend(queries, cache, [9, 4])
    moved = torch.empty(queries.numel() + 1)[1:].view_as(queries).copy_(queries)
    turned = queries.transpose(0, 1).contiguous().transpose(0, 1)
    assert moved.data_ptr() % 16
    assert not turned.is_contiguous()
    assert torch.equal(attention.attend(moved, cache, [9, 4]), wanted)
    assert torch.equal(attention.attend(turned, cache, [9, 4]), wanted)


def test_a_cpu_does_not_use_them() -> None:
    """Though here they could run, interpreted."""
    assert decoder.fused(text(SHAPES["grouped"], torch.float32, 1)) is None


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "chosen", lambda device: True)


@pytest.mark.usefixtures("used")
def test_the_decoder_uses_them_where_it_should() -> None:
    """`attend` and `attend_sink` go through the kernels; keys of rows' own do not."""
    ops = Arithmetic.on(torch.device("cpu"))
    shape = SHAPES["grouped"]
    cache, queries = text(shape, torch.float32, 70), queries_of(shape, 2)
    assert torch.equal(decoder.attend(ops, queries, cache, [3, 69]), attention.attend(queries, cache, [3, 69]))
    assert decoder.fused(cache.branch()) is None
    queries, sinks, sights = sights_of(torch.float32, rows=2)
    views = [compressed.Sight(*sight) for sight in sights]
    wanted = attention.attend_sink(queries, sinks, sights)
    assert torch.equal(compressed.attend_sink(ops, queries, sinks, views), wanted)


FAULTS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    "number of rows": lambda y, last: y * (1 + (len(y) > 4) * 2.0**-20),
    "more text": lambda y, last: y * (1 + (max(last) % CHUNK > 1) * (len(y) > 1) * 2.0**-20),
}


@pytest.mark.usefixtures("used")
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_the_start_up_test_tries_them(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a segment of 128 slots, which is sooner tried."""
    honest = attention.attend

    def attend(queries: Tensor, cache: KVCache, last: list[int]) -> Tensor:
        found = honest(queries, cache, last)
        return found if fault is None else FAULTS[fault](found, last)

    monkeypatch.setattr(attention, "ATTENTION", replace(attention.ATTENTION, segment=2 * CHUNK))
    monkeypatch.setattr(attention, "attend", attend)
    monkeypatch.setattr(selftest, "ROW_COUNTS", (1, 2, 5))
    ops = Arithmetic.on(torch.device("cpu"))
    if fault is None:
        selftest._check_attention(ops, 1, SHAPES["one head"].cache(torch.float32))
        return
    with pytest.raises(SystemFailure, match=r"attention with 1 heads of 16 .* has other bits than alone"):
        selftest._check_attention(ops, 1, SHAPES["one head"].cache(torch.float32))


def near_all() -> None:
    for shape in SHAPES.values():
        is_near(shape, torch.float32, [9, 70])


MUTANTS = [
    ("slot < end if", "slot < end - 1 if", "near"),  # not the row itself
    ("tl.minimum(low + segment, end) + keys - 1", "tl.minimum(low + segment, end)", "near"),  # no step that is not full
    ("kv = tl.program_id(2) // (tiles * blocks)", "kv = 0", "near"),
    ("// blocks % tiles * HEADS", "// blocks % tiles * 0", "near"),  # the first 16 heads of a group
    ("(value_at + column)", "column", "near"),
    ("scores = tl.dot(a, b.to(tl.float32), scores,", "scores = tl.dot(a, b.to(tl.float32), scores * 0,", "near"),
    ("mix * decay[:, None]", "mix", "near"),
    ("total * decay + tl.reduce", "total + tl.reduce", "near"),
    ("tl.load(pages + step * keys // PAGE)", "tl.load(pages)", "near"),
    ("slot < end if", "slot < end + 1 if", "beyond"),
    ("mask=sees[:, None] & has[None, :]", "mask=has[None, :]", "beyond"),
    ("while segment < segments", "while segment < 1", "segments"),
    ("mix = mix * decay + tl.load", "mix = mix + tl.load", "segments"),
    ("r = row + tl.program_id(0)", "r = tl.program_id(0)", "scratch"),
    ("to = ((row + tl.program_id(0)", "to = ((tl.program_id(0)", "scratch"),
    ("low, first * PAGE", "low, first * PAGE + keys", "sink"),
    ("peak = tl.load(sinks + head)", "peak = tl.load(sinks)", "sink"),
    ("total = tl.full((), 1.0, tl.float32)", "total = tl.full((), 0.0, tl.float32)", "sink"),
    ("segments + place + tl", "segments + tl", "sink"),
]


@pytest.mark.parametrize(("old", "new", "seen_by"), MUTANTS)
def test_a_wrong_program_is_seen(
    old: str, new: str, seen_by: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: dict[str, Callable[[], None]] = {
        "near": near_all,
        "beyond": lambda: nothing_beyond_sight(SHAPES["grouped"], 70),
        "segments": test_over_the_edges_of_segments,
        "scratch": lambda: test_scratch_for_a_row_or_two(monkeypatch),
        "sink": lambda: sink_is_near(torch.float32),
    }
    monkeypatch.setattr(attention, "programs", mutant(programs_attention, old, new))
    with pytest.raises(AssertionError):
        checks[seen_by]()


def test_the_shapes_are_what_they_are_called() -> None:
    """The reference knows nothing of the cache: softmax of all, in float64."""
    shape = Shape(1, 1, 16, 16)
    cache, queries = text(shape, torch.float32, 3), queries_of(shape, 1)
    keys, values = (x[0, :3].double() for x in cache.read(0))
    weights = torch.softmax(keys @ queries[0, 0].double(), 0)
    torch.testing.assert_close(exact(queries, cache, [2])[0][0, 0], weights @ values)
