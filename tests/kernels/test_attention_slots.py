"""Attention of rows whose slots only the device knows, interpreted: the same bits, however many programs start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.kernels import attention, programs_attention
from tests.kernels.checks_attention import EPS, SHAPES, exact, noise, queries_of, text
from tests.kernels.checks_heads import same
from tests.kernels.test_faults import Mutant, mutant

__all__ = ["mutant"]

FAR = 500


@pytest.fixture(autouse=True)
def _small_and_poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Segments of 128 slots. Fresh memory is NaN, by torch's own setting: what was not written is not to be read."""
    monkeypatch.setattr(attention, "ATTENTION", replace(attention.ATTENTION, segment=2 * CHUNK))
    torch.use_deterministic_algorithms(True)
    assert torch.zeros(1).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def anywhere(values: list[int]) -> Tensor:
    """int64, at an address that is no multiple of 16."""
    found = torch.tensor([-1, *values])[1:]
    assert found.data_ptr() % 16
    return found


def far_is_near(name: str, last: list[int]) -> None:
    shape = SHAPES[name]
    cache, queries = text(shape, torch.bfloat16, max(last) + 1), queries_of(shape, len(last))
    want = attention.attend(queries, cache, last)
    found, bound = exact(queries, cache, last)
    assert ((want - found).abs() <= bound).all()
    for until in (max(last) + 1, FAR):
        assert same(attention.attend(queries, cache, anywhere(last), until), want)
    assert same(attention.attend(queries, cache, last, FAR), want)


@pytest.mark.parametrize(("name", "last"), [("grouped", [64, 0]), ("latent", [70]), ("one head", [200, 3, 127, 128])])
def test_more_programs_change_nothing(name: str, last: list[int]) -> None:
    far_is_near(name, last)


class Roomy(KVCache):
    """Whose table of chunks has no address of those from `known` on, and room for more."""

    known = 2

    @property
    def pages(self) -> Tensor:
        return torch.tensor([chunk.data_ptr() for chunk in self.chunks[: self.known]] + [0] * 40)


def test_chunks_beyond_sight_need_not_be_there() -> None:
    """Their addresses are 0, which nobody can read."""
    shape = SHAPES["grouped"]
    cache = Roomy(shape.kv_heads, shape.key_dim, shape.value_dim, torch.float16, torch.device("cpu"))
    cache.append(noise(4 * CHUNK, *cache.shape[::2], seed=1))
    whole = KVCache(shape.kv_heads, shape.key_dim, shape.value_dim, torch.float16, cache.device)
    whole.chunks, whole.length = cache.chunks, cache.length
    queries = queries_of(shape, 3)
    for until in (2 * CHUNK, FAR):
        got = attention.attend(queries, cache, torch.tensor([0, 2 * CHUNK - 1, CHUNK]), until)
        assert same(got, attention.attend(queries, whole, [0, 2 * CHUNK - 1, CHUNK]))


def gate_of(name: str, rows: int) -> Tensor:
    """Part of a wider tensor, as of the product that queries come from. Some are far from 0."""
    shape = SHAPES[name]
    wide = 4 * noise(rows, 3 + 2 * shape.heads, shape.value_dim, seed=rows)
    gate = wide[:, 3 : 3 + shape.heads]
    gate[0, 0, :3] = torch.tensor([200.0, -200.0, 0.0])
    return gate


def gate_is_near() -> None:
    """A few roundings, and of exp's argument one."""
    name = "grouped"
    shape, last = SHAPES[name], [3, 70, 64]
    cache, queries, gate = text(shape, torch.float32, 71), queries_of(shape, 3), gate_of(name, 3)
    found = attention.attend(queries, cache, last)
    got, want = attention.attend(queries, cache, last, gate=gate), found.double() * gate.double().sigmoid()
    assert ((got - want).abs() <= (8 + gate.abs()) * EPS * want.abs() + 1e-30).all()
    assert same(attention.attend(queries, cache, last, gate=gate.contiguous()), got)
    assert same(attention.attend(queries, cache, last, gate=gate.mT.contiguous().mT), got)
    for row in range(3):
        alone = attention.attend(queries[row : row + 1], cache, last[row : row + 1], gate=gate[row : row + 1])
        assert same(alone[0], got[row])


def test_gate() -> None:
    gate_is_near()


def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go in as many launches as scratch memory asks for, each with its own slots and gates."""
    shape, last = SHAPES["one head"], [3, 150, 64]
    cache, queries, gate = text(shape, torch.float32, 151), queries_of(shape, 3), gate_of("one head", 3)
    want = attention.attend(queries, cache, last, gate=gate)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "SCRATCH", 0)
        assert same(attention.attend(queries, cache, anywhere(last), FAR, gate), want)


def test_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    few_rows_at_a_time(monkeypatch)


MUTANTS = [
    ("// length + 1", "// length", "far"),
    ("tl.load(last + r).to(tl.int32) // length", "tl.load(last).to(tl.int32) // length", "far"),
    ("* room + segment", "* segments + segment", "far"),
    ("mask=any_seen[:, None] & has", "mask=(here & (total == 0))[:, None] & has", "far"),
    ("r * gate_row", "0 * gate_row", "gate"),
    ("head * gate_head", "0 * gate_head", "gate"),
    ("tl.exp(-opening)", "tl.exp(opening)", "gate"),
    ("r * gate_row", "tl.program_id(0) * gate_row", "few"),
    ("tl.load(last + r).to(tl.int32) // length", "tl.load(last + tl.program_id(0)).to(tl.int32) // length", "few"),
]


@pytest.mark.parametrize(("old", "new", "seen_by"), MUTANTS)
def test_a_wrong_program_is_seen(
    old: str, new: str, seen_by: str, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: dict[str, Callable[[], None]] = {
        "far": lambda: far_is_near("one head", [3, 150]),
        "gate": gate_is_near,
        "few": lambda: few_rows_at_a_time(monkeypatch),
    }
    monkeypatch.setattr(attention, "programs", mutant(programs_attention, old, new))
    with pytest.raises(AssertionError):
        checks[seen_by]()
