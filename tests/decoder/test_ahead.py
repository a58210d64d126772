"""Off-loaded layers that are copied ahead: the bits of weights on the device, whatever a GPU may do with the copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import ahead, hold, load
from mtptools.decoder.ahead import Ahead, Belt
from mtptools.decoder.lane import CudaLane, HostLane
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.offload import Offloaded, Seat, offloaded
from mtptools.decoder.parity import compare
from mtptools.decoder.placement import Placement
from mtptools.decoder.speculate import decode_plain
from mtptools.decoder.trace import Trace
from mtptools.errors import SystemFailure
from tests.decoder.adversary import Adversary, Deaf, Early, Hasty

CPU = torch.device("cpu")
PROMPT = [5, 200]


def layers_of(n: int) -> list[list[Offloaded]]:
    """Matrices of different sizes and types, whose values tell them apart."""
    generator = torch.Generator().manual_seed(n)
    sizes = [[(3, 5), (7,)], [(2, 2)], [(33, 9), (1, 1), (4, 4)]]
    return [
        [
            offloaded(torch.randn(size, generator=generator).to([torch.float32, torch.bfloat16][at % 2]), CPU)
            for at, size in enumerate(sizes[number % 3])
        ]
        for number in range(n)
    ]


def sound(lane: Adversary, layers: Sequence[Sequence[Offloaded]], order: Sequence[int]) -> bool:
    """Does every layer in turn find its own values, at its beginning and at its end?"""
    belt, good = Belt(layers, lane), True
    for number in order:
        with belt.at_work(number):
            for matrix in [*layers[number], *layers[number]]:
                assert matrix.here() is not matrix.weight
                good &= torch.equal(matrix.here(), matrix.weight)  # type: ignore[arg-type]  # of values
    return good


def rehearsed(kind: type[Adversary], n: int, order: Sequence[int], seed: int) -> tuple[bool, Adversary]:
    """The first time to see what is issued."""
    first = kind(seed=seed)
    good = sound(first, layers_of(n), order)
    second = kind(first.issued, seed)
    return sound(second, layers_of(n), order) and good, second


def passes(n: int) -> list[int]:
    """Three in order, a layer as mixer and feed-forward part apart, then calls in any order."""
    strange = torch.randint(n, (12,), generator=torch.Generator().manual_seed(n)).tolist()
    return [*range(n)] * 3 + [0, 0, n - 1, n - 1] + strange


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_layer_finds_its_own_values(n: int, seed: int) -> None:
    good, lane = rehearsed(Adversary, n, passes(n), seed)
    assert good
    assert len(lane.arenas) == min(n, 2)
    assert lane.early or n == 1  # it did begin copies before they were issued


@pytest.mark.parametrize("fault", [Deaf, Hasty, Early])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_a_wait_that_is_missing_is_seen(fault: type[Adversary], n: int) -> None:
    """In plain passes alone. Two layers are never overwritten."""
    order, seeds = [*range(n)] * 3, range(4)
    found = [rehearsed(fault, n, order, seed)[0] for seed in seeds]
    assert found == [n == 2 and fault is not Deaf] * len(seeds)


def test_a_copy_for_each_layer_and_none_twice() -> None:
    """In two passes. Of an even number the first one of a pass is copied in the pass before; what is there stays."""
    for n, wanted in ((2, [0, 1]), (3, [0, 1, 2, 0, 2]), (4, [0, 1, 2, 3, 0, 1, 2, 3, 0]), (1, [0])):
        lane, layers = Adversary(), layers_of(n)
        belt = Belt(layers, lane)
        for number in [*range(n)] * 2:
            with belt.at_work(number):
                ends = [places[-1] for _, places in lane.issued]
        assert len(ends) == len(wanted)
        assert [arena for arena, _, _ in ends] == [number % 2 for number in wanted]


def test_a_matrix_keeps_its_address() -> None:
    layers = layers_of(4)
    belt = Belt(layers, HostLane(CPU))
    found: list[list[int]] = []
    for _ in range(2):
        found.append([])
        for number in range(4):
            with belt.at_work(number):
                found[-1] += [matrix.here().data_ptr() for matrix in layers[number]]  # type: ignore[union-attr]
    assert found[0] == found[1]
    bases = [arena.memory.data_ptr() for arena in belt.arenas]
    assert all((place - bases[0]) % 256 == 0 or (place - bases[1]) % 256 == 0 for place in found[0])


def test_out_of_its_layer_a_matrix_is_copied_for_the_asking() -> None:
    layers = layers_of(3)
    belt = Belt(layers, Adversary())
    for number in (0, 1, 2):
        with belt.at_work(number):
            others = [one for at, some in enumerate(layers) if at != number for one in some]
            assert all(torch.equal(one.dense(), one.weight) for one in others)  # type: ignore[arg-type]
    assert all(torch.equal(one.dense(), one.weight) for some in layers for one in some)  # type: ignore[arg-type]


def test_a_failed_copy_is_made_again() -> None:
    class Failing(HostLane):
        fails = True

        def copy(self, pairs: Sequence[tuple[Tensor, Tensor]], after: Any) -> Any:
            if self.fails:
                raise RuntimeError("the first time")
            return super().copy(pairs, after)

    lane, layers = Failing(CPU), layers_of(2)
    belt = Belt(layers, lane)
    with pytest.raises(RuntimeError, match="the first time"), belt.at_work(0):
        raise AssertionError("nothing to compute with")
    lane.fails = False
    with belt.at_work(0):
        assert torch.equal(layers[0][0].here(), layers[0][0].weight)  # type: ignore[arg-type]


# Whole models.


@pytest.fixture
def decoded(toy_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trace]:
    """What an off-loaded toy writes, its copies on a lane; without kernels."""
    for module in (hold, load):
        monkeypatch.setattr(module, "unavailable", lambda device: "none are to be used")

    def run(lane: Any = None, moe: bool = False, how: str = "offloaded", tokens: int = 3, **more: Any) -> Trace:
        if lane is not None:
            monkeypatch.setattr(ahead, "lane_of", lambda device: lane)
        return decode_plain(toy(toy_path(moe, "Q8_0"), how, **more), PROMPT, tokens)

    return run


def toy(path: Path, how: str, **more: Any) -> Model:
    model = load_model(open_checkpoint(path), weights=how, check=False, **more)
    assert {isinstance(block, Ahead) for block in model.trunk.blocks} == {how == "offloaded"}
    return model


def twice(kind: type[Adversary], run: Callable[..., Trace], **options: Any) -> list[Trace]:
    first = kind()
    return [run(first, **options), run(kind(first.issued), **options)]


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("device", ["cpu", Placement((CPU, CPU), (0, 1, 1))])
def test_decoding(moe: bool, device: Any, decoded: Callable[..., Trace]) -> None:
    wanted = decoded(moe=moe, how="loaded")
    for trace in twice(Adversary, decoded, moe=moe, device=device):
        assert compare(wanted, trace).equal


@pytest.mark.parametrize("fault", [Deaf, Hasty, Early])
def test_decoding_with_a_wait_missing(fault: type[Adversary], decoded: Callable[..., Trace]) -> None:
    wanted = decoded(how="loaded")
    assert not all(compare(wanted, trace).equal for trace in twice(fault, decoded))


# The other side of the protocol, without a GPU: what is called, in order.


class Calls(list[str]):
    """Stands for a stream."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> str:
        self.log.append(f"{self.name} is marked")
        return f"{self.name}'s mark {len(self.log)}"


def test_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    copies, computing = Calls("copies", log), Calls("computing", log)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: copies)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: log.append(f"on {stream.name}") or nullcontext())
    monkeypatch.setattr(Tensor, "record_stream", lambda self, stream: log.append(f"an arena of {stream.name}"))
    lane = CudaLane(CPU)
    arena, source = lane.arena(4), torch.arange(4, dtype=torch.uint8)
    landed = lane.copy([(arena, source)], lane.reached())
    lane.wait(landed)
    assert torch.equal(arena, source)
    assert log == [
        "an arena of copies",
        "computing is marked",
        "copies waits for computing's mark 2",
        "on copies",
        "copies is marked",
        "computing waits for copies's mark 5",
    ]


def test_memory_that_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch says it where the system gives none."""

    def none_left(self: Tensor) -> Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(Tensor, "pin_memory", none_left)
    with pytest.raises(SystemFailure, match=r"pins no more .* 4 MiB were asked for; .* are free: CUDA error") as found:
        offloaded(torch.zeros(1 << 20), torch.device("cuda:0"))
    assert str(found.value.hint).endswith("or --device cpu")
    assert offloaded(torch.zeros(1), CPU).seat == Seat()
