"""Recorded passes: a tape (`tape.py`) does on the CPU what a CUDA graph does on a GPU, kernels interpreted.

It knows no host code, as a graph does not: what a pass must not take from the host would be that of the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.interpreted import HAVE, Summed, import_kernels

if not HAVE:
    pytest.skip("triton is not installed: there are no kernels", allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("kernels are compiled where a GPU is, and not interpreted: pytest -m gpu", allow_module_level=True)

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import hold, kernels, ops, replay
from mtptools.decoder.cache import CHUNK, Fixed, KVCache, RingCache
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.moe import FEW, Mlp, MlpWeights, Moe
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.offload import offloaded
from mtptools.decoder.pipeline import Elsewhere
from mtptools.decoder.replay import MOST, _Tape, cannot, on_cuda
from mtptools.decoder.trunk import Trunk
from mtptools.errors import SystemFailure
from tests.decoder.tape import PASSES, decoded, on_tape, recorded, same

import_kernels()

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> Any:
    """As on a GPU: all that kernels can do, they do."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(kernels, "chosen", lambda device: True)
        patch.setattr(replay, "LEAST", CHUNK)  # then twice as many
        patch.setattr(ops, "floats", Summed)
        yield


def _packed(path: Path) -> Model:
    """Its values not looked at, which takes long in the interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hold, "check_finite", lambda *_: None)
        return load_model(open_checkpoint(path), weights="resident", check=False)


@pytest.fixture(scope="module")
def model(toy_path: Callable[..., Path]) -> Model:
    return load_model(open_checkpoint(toy_path(False, "Q8_0")), weights="loaded", check=False)


@pytest.fixture(scope="module")
def trunk(model: Model) -> Trunk:
    """A recurrent layer and one of attention."""
    assert model.trunk.replays is None
    return replace(model.trunk, blocks=model.trunk.blocks[-2:])


@pytest.fixture(scope="module")
def wanted(trunk: Trunk) -> list[Tensor]:
    """Nothing recorded."""
    return decoded(trunk)


def test_bits(trunk: Trunk, wanted: list[Tensor]) -> None:
    """Passes of one row and of several, some taken back; then a second text in the memory of the first."""
    ours, replays = recorded(trunk)
    assert same(decoded(ours), wanted)
    assert not replays.refused
    once = replays.recorded, replays.replayed
    assert once[0] == 4  # one row in 64 slots, and in 128; three in a larger ring, and one there
    assert replays.replayed > replays.compared
    assert same(decoded(ours, PASSES[:3]), wanted[:3])
    assert not replays.refused
    assert (replays.recorded, replays.replayed) > once
    assert len(replays._free) == 1


@torch.inference_mode()
def turns(trunk: Trunk, *firsts: int) -> list[Tensor]:
    """The states of texts from these tokens on, a token of each in turn."""
    caches = [trunk.new_cache() for _ in firsts]
    texts: list[list[Tensor]] = [[] for _ in firsts]
    for step in range(5):
        for first, cache, text in zip(firsts, caches, texts, strict=True):
            text.append(trunk.forward([first + step], cache).pre)
    return [torch.cat(text) for text in texts]


def test_two_texts_at_a_time(trunk: Trunk) -> None:
    """Each has a memory of its own, and the next text takes it over."""
    ours, replays = recorded(trunk)
    alone = [text for first in (9, 70) for text in turns(trunk, first)]
    assert same(turns(ours, 9, 70), alone)
    assert len(replays._free) == 2
    assert same(turns(ours, 70, 9), alone[::-1])
    assert len(replays._free) == 2
    assert not replays.refused
    assert replays.replayed > replays.compared


SHORT = ((1, 1),) * 5


def _host_positions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCache, "positions", lambda self, rows: torch.arange(self.length, self.length + rows))


def _host_state(patch: pytest.MonkeyPatch) -> None:
    own = RingCache.ring
    patch.setattr(RingCache, "ring", lambda self: replace(own(self), at=torch.full((1,), self.at)))


@pytest.mark.parametrize(("fault", "block"), [(_host_positions, 1), (_host_state, 0)])
def test_a_number_of_the_host_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], block: int, trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the second replay of a recording at the latest."""
    fault(monkeypatch)
    ours, replays = recorded(replace(trunk, blocks=(trunk.blocks[block],)))
    with pytest.raises(SystemFailure, match="1 rows has other bits") as failed:
        decoded(ours, SHORT)
    assert "--no-graphs" in failed.value.hint
    assert replays.compared


def test_what_cannot_be_recorded(trunk: Trunk, wanted: list[Tensor]) -> None:
    """A capture that fails half-way leaves the text as it was."""

    def half(run: Callable[[], Tensor]) -> Any:
        on_tape(run)
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")

    ours, replays = recorded(trunk, half)
    assert same(decoded(ours, SHORT[:3]), wanted[:3])
    assert replays.refused == "recording failed: CUDA error: operation not permitted when stream is capturing"


def test_a_state_that_the_result_does_not_show(trunk: Trunk) -> None:
    """One bit of what a recurrent layer keeps for the next token."""

    def other(run: Callable[[], Tensor]) -> Any:
        tape, out = on_tape(run)
        tape.steps.append(spoil)
        return tape, out

    def spoil() -> None:
        """Before the host counts the pass: the slot that it wrote is the next."""
        ring = next(layer for layer in made if isinstance(layer, RingCache))
        ring.memory[(ring.at + 1) % len(ring.memory)].view(torch.int32)[0, 0, 0] ^= 1

    made: list[Any] = []
    ours, replays = recorded(replace(trunk, blocks=trunk.blocks[:1]), other)
    own = replays.cache
    replays.cache = lambda new: own(lambda: made.extend(new()) or made)  # type: ignore[method-assign,func-returns-value]
    with pytest.raises(SystemFailure, match="other bits"):
        decoded(ours, SHORT)


@torch.inference_mode()
def test_experts(toy_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows go is known to the device alone; with their experts sorted on the host it cannot be recorded."""
    model = _packed(toy_path(True, "Q8_0"))
    block: Any = model.trunk.blocks[0]
    assert isinstance(block.ffn, Moe)
    assert cannot(model.trunk.blocks, CPU, kernels=True) is None
    rows = torch.randn((4, model.trunk.norm.shape[0]), generator=torch.Generator().manual_seed(1))
    x = rows[:2].clone()
    tape, out = on_tape(lambda: block.ffn.forward(x))
    x.copy_(rows[2:])
    tape.replay()
    assert torch.equal(out, torch.cat([block.ffn.forward(row[None]) for row in rows[2:]]))
    assert tape.launches == 10  # the router's product is two here, by `Summed`
    monkeypatch.setattr(Moe, "_few", lambda self, x, experts: None)
    assert torch.equal(block.ffn.forward(x), out)
    with pytest.raises(RuntimeError, match="capturing"):
        on_tape(lambda: block.ffn.forward(x))


def test_memory_that_is_given_out_again(trunk: Trunk) -> None:
    """Another table of angles, at the address of the one that was recorded: it is not the same."""
    ours, replays = recorded(trunk)
    lease, first, kept = replays.cache(ours._caches).lease, torch.zeros(2, CHUNK, 8), []
    other = first[:, : CHUNK // 2]
    assert other.data_ptr() == first.data_ptr()
    for table in (first, first, other):
        replays.ropes = [SimpleNamespace(until=lambda stop, table=table: table)]
        replays._settle(lease, 1, CHUNK)
        kept.append(len(lease.tapes))
        lease.tapes[(1,)] = _Tape(torch.empty(0), Fixed(torch.empty(0), torch.empty(0), 0))
    assert kept == [0, 1, 0]


def test_the_stream_after_a_recording_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.cuda.graph` goes back to the stream that it came from only if the recording ends well."""

    @contextmanager
    def graph(*args: object, stream: str, **more: object) -> Iterator[None]:
        current.append(stream)
        yield
        raise RuntimeError("invalid capture")

    current = ["the computing's"]
    for name in ("CUDAGraph", "graph_pool_handle"):
        monkeypatch.setattr(torch.cuda, name, object)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "the recording's")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    replay._beside.cache_clear()
    with pytest.raises(RuntimeError, match="invalid"):
        on_cuda(CPU)(lambda: torch.empty(0))
    replay._beside.cache_clear()
    assert current == ["the computing's", "the recording's", "the computing's"]


def test_models_that_are_not_recorded(trunk: Trunk) -> None:
    assert MOST <= FEW, "of more rows the host sorts experts, which cannot be recorded"
    assert cannot(trunk.blocks, CPU, kernels=True) is None
    assert "layers" in str(cannot([Elsewhere(trunk.blocks[0], CPU, CPU)], CPU, kernels=True))
    away = Mlp(MlpWeights(offloaded(torch.ones(2, 1), CPU), torch.ones(1, 1)), trunk.arithmetic)
    assert "GPU" in str(cannot([replace(trunk.blocks[0], ffn=away)], CPU, kernels=True))
    assert "no kernels" in str(cannot(trunk.blocks, CPU, kernels=False))
    assert "layers" in str(cannot([SimpleNamespace(mixer=object(), ffn=object())], CPU, kernels=True))


@torch.inference_mode()
def test_launches(toy_path: Callable[..., Path]) -> None:
    """A layer of one row: what is not a product is a launch or two."""
    trunk = _packed(toy_path(False, "Q8_0")).trunk
    x, zero, counts = torch.ones((1, trunk.norm.shape[0])), torch.zeros(1, dtype=torch.int64), []
    fixed = Fixed(zero, zero, CHUNK)
    for block in trunk.blocks[1:]:
        cache: Any = block.new_cache()
        block.forward(x, cache, 0, [0])  # which makes tables and pages
        cache.forget()
        cache.fixed = fixed
        tape, _ = on_tape(lambda block=block, cache=cache: block.forward(x, cache, 0, [0]))
        counts.append(tape.launches)
    assert counts == [12, 11]  # a recurrent layer, whose output takes its columns in another order; attention


@torch.inference_mode()
def test_drafts(model: Model) -> None:
    """The head's passes: their norms and fusion too, and slots taken back after every step."""
    head = model.require_head()
    ours = head.recording(lambda device: on_tape)
    (replays,) = ours.replays
    states = torch.randn((8, head.layers[0].norm.shape[0]), generator=torch.Generator().manual_seed(2))

    def drafted(head: Head) -> list[Tensor]:
        drafter, rows = Drafter(head), []

        def choose(row: Tensor, position: int) -> int:
            rows.append(row)
            return int(row.argmax())

        for at in range(0, 8, 2):
            drafter.observe(states[at : at + 2], [7 * at, 7 * at + 1])
            drafter.draft(4, choose)
        return rows

    assert same(drafted(ours), drafted(head))
    assert not replays.refused
    assert replays.replayed > replays.compared > 1
    assert not replace(ours, layers=tuple(layer.swapped() for layer in ours.layers)).replays
