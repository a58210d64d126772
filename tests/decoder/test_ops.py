"""Row arithmetic, attention chunks, rotary positions: the pieces exactness rests on."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mtptools.decoder import attention, selftest
from mtptools.decoder.attention import attend
from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.ops import Arithmetic, exact_settings
from mtptools.decoder.rope import Rope
from mtptools.decoder.selftest import check_rows
from mtptools.decoder.settings import RopeSettings
from mtptools.errors import SystemFailure

CPU = torch.device("cpu")
LOOP = Arithmetic.on(CPU)
TILES = Arithmetic(CPU, 16)  # what a GPU runs


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("arithmetic", [LOOP, TILES], ids=["loop", "tiles"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "cols"), [(256, 256), (151, 96), (384, 100)])
def test_linear_rows_stand_alone(arithmetic: Arithmetic, dtype: torch.dtype, rows: int, cols: int) -> None:
    weight = random(rows, cols).to(dtype)
    check_rows(lambda x: arithmetic.linear(x, weight), cols, "linear", CPU, 1)
    check_rows(lambda x: arithmetic.logits(x, weight), cols, "logits", CPU, 1)
    x = random(3, cols, seed=1)
    torch.testing.assert_close(arithmetic.linear(x, weight), x @ weight.float().T, rtol=0.05, atol=0.5)
    assert arithmetic.linear(x, weight).dtype == torch.float32


def test_logits_of_a_narrow_matrix_are_not_rounded_to_it() -> None:
    weight, x = random(64, 32).bfloat16(), random(2, 32, seed=1)
    torch.testing.assert_close(LOOP.logits(x, weight), x @ weight.float().T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arithmetic", [LOOP, TILES], ids=["loop", "tiles"])
def test_other_rowwise_operations(arithmetic: Arithmetic) -> None:
    for cols in (64, 100, 4096):
        weight = random(cols)
        check_rows(lambda x, w=weight: arithmetic.rms_norm(x, w, 1e-6), cols, "norm", CPU, 1)
        check_rows(arithmetic.silu_gate, cols, "gate", CPU, 1)
    x = random(5, 64)
    wanted = functional.rms_norm(x, (64,), weight[:64], 1e-6)
    torch.testing.assert_close(arithmetic.rms_norm(x, weight[:64], 1e-6), wanted)
    torch.testing.assert_close(arithmetic.silu_gate(x), functional.silu(x[:, :32]) * x[:, 32:])


def test_self_test_names_what_moved() -> None:
    def leaks(x: torch.Tensor) -> torch.Tensor:
        return x + 1e-6 * x.shape[0]

    with pytest.raises(SystemFailure, match=r"fuse \[2, 3\].*row 0 of 2"):
        check_rows(leaks, 3, "fuse [2, 3]", CPU, 1)


def test_self_test_sees_a_row_that_depends_on_its_neighbours() -> None:
    with pytest.raises(SystemFailure, match="has other bits than alone"):
        check_rows(lambda x: x - x.mean(0) * 0 + x.abs().amax() * 1e-7, 8, "x", CPU, 1)


def test_exact_settings_forbid_reduced_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    exact_settings()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


def cache_of(n: int, kv_heads: int = 2, dim: int = 16) -> KVCache:
    cache = KVCache(kv_heads, dim, dim, torch.float32, CPU)
    cache.append(random(n, kv_heads, 2 * dim))
    return cache


@pytest.mark.parametrize("last", [0, 62, 63, 64, 65, 127, 128, 199])
def test_attention_is_softmax_attention(last: int) -> None:
    cache, query = cache_of(200), random(1, 4, 16, seed=3)
    keys_values = torch.cat(cache.chunks, dim=1)[:, : last + 1].repeat_interleave(2, dim=0)
    keys, values = keys_values.split(16, dim=-1)
    wanted = functional.scaled_dot_product_attention(query.transpose(0, 1), keys, values, scale=1.0)
    torch.testing.assert_close(attend(LOOP, query, cache, [last]), wanted.transpose(0, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("arithmetic", [LOOP, TILES], ids=["loop", "tiles"])
def test_attention_rows_stand_alone(arithmetic: Arithmetic) -> None:
    cache, queries = cache_of(300), random(9, 4, 16, seed=3)
    last = [0, 63, 64, 65, 128, 191, 192, 255, 256]
    together = attend(arithmetic, queries, cache, last)
    for row, end in enumerate(last):
        assert torch.equal(attend(arithmetic, queries[row : row + 1], cache, [end])[0], together[row])


def test_a_chunk_out_of_sight_changes_no_bit() -> None:
    cache, query = cache_of(3 * CHUNK), random(16, 4, 16, seed=3)
    alone = attend(TILES, query, cache, [40] * 16)
    beside_a_far_one = attend(TILES, query, cache, [40] * 15 + [3 * CHUNK - 1])
    assert torch.equal(alone[:15], beside_a_far_one[:15])
    cache.chunks[1].fill_(1e30)  # nothing of it may leak
    assert torch.equal(attend(LOOP, query[:1], cache, [40]), attend(LOOP, query[:1], cache_of(CHUNK), [40]))


def test_forgotten_slots_are_not_seen() -> None:
    cache, query = cache_of(70), random(1, 4, 16, seed=3)
    before = attend(LOOP, query, cache, [69])
    cache.append(random(10, 2, 32, seed=9) * 100)
    cache.rollback(70)
    assert torch.equal(attend(LOOP, query, cache, [69]), before)


def test_rope_table_does_not_depend_on_how_it_grew() -> None:
    at_once, by_steps = Rope(RopeSettings(1e4, 16), CPU), Rope(RopeSettings(1e4, 16), CPU)
    whole = at_once.at(0, 300)
    for start in range(0, 300, 7):
        by_steps.at(start, 7)
    assert torch.equal(by_steps.at(0, 300), whole)


def test_masks_open_key_by_key() -> None:
    masks = attention._masks(CPU)
    assert [int((row == 0).sum()) for row in masks] == list(range(CHUNK + 1))


def test_budget_keeps_the_self_test_short(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(selftest, "BUDGET", 1000.0)
    check_rows(lambda x: calls.append(1) or x * 2, 4, "x", CPU, 20)
    assert len(calls) == 1 + 1 + 2 * 5  # the row to compare with, one row, two fillers at each other count
    calls.clear()
    check_rows(lambda x: calls.append(1) or x * 2, 4, "x", CPU, 1e9)
    assert len(calls) == 1 + 1 + 2
