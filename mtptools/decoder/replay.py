"""Passes of few rows, recorded once and replayed: a GPU is told of all their programs at once (a CUDA graph).

A recorded pass runs the programs that it was recorded with, on the addresses that it was recorded with. What changes
from one token to the next is therefore read on the device (`cache.Fixed`): the rows' slots, and where recurrent states
are. The same code makes a pass that is not recorded, so bits stay what they are. That they do is tried all the same:
the first replays of every recording are compared with the pass itself, states and all; one that differs is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import is_not
from typing import Any, Final, Protocol, TypeAlias
from weakref import finalize

import torch
from torch import Tensor

from mtptools.decoder.cache import CHUNK, Cache, Fixed, KVCache, RingCache
from mtptools.decoder.packed import Weight
from mtptools.decoder.resident import Resident
from mtptools.errors import SystemFailure

__all__ = ["MOST", "TRIALS", "Capture", "Graph", "LeasedCache", "Replays", "cannot", "on_cuda"]

MOST: Final = 16
"""Rows of a pass that is recorded: one token and its drafts."""

TRIALS: Final = 2
"""Replays of every recording that are compared with the pass itself: at two positions, so that none is fixed in it."""

LEAST: Final = 8 * CHUNK
"""Slots that a recording looks through at least; longer texts take twice as many, and another recording, each time."""

REACH: Final = CHUNK
"""Positions that a rotary turn may be ahead of its slot: in a head, by its depth."""

Memory: TypeAlias = "KVCache | RingCache"


class Graph(Protocol):
    def replay(self) -> None: ...


Capture: TypeAlias = "Callable[[Callable[[], Tensor]], tuple[Graph, Tensor]]"
"""Records what a function does, which need not be done then; what it returns is what every replay writes."""


def on_cuda(device: torch.device) -> Capture:
    """As CUDA graphs in one pool of memory: no two are replayed at a time, and what one writes is copied at once."""
    pool, stream = torch.cuda.graph_pool_handle(), _beside(device)

    def capture(run: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            before = torch.cuda.current_stream()
            try:
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    out = run()
            finally:
                torch.cuda.set_stream(before)  # torch goes back by itself only if the recording ends well
        return graph, out

    return capture


@cache
def _beside(device: torch.device) -> Any:
    """The stream of all recordings: cuBLAS gets up to 32 MB for each that it was ever used on, and keeps them."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def cannot(blocks: Sequence[Any], device: torch.device, *, kernels: bool) -> str | None:
    """Why passes through these layers cannot be recorded; None where they can."""
    if not kernels:
        return f"no kernels on {device}"
    for block in blocks:
        parts = [getattr(block, name, None) for name in ("mixer", "ffn")]
        if not all(getattr(part, "recordable", False) for part in parts):
            return "its layers are split, or ask the host where rows go"
        if any(not isinstance(weight, Tensor | Resident) for weight in _weights(block)):
            return "weights are not on the GPU"
    return None


def _weights(block: Any) -> Iterator[Weight]:
    yield from (weight for _, weight in block.matrices())


@dataclass(eq=False)
class _Tape:
    """x [rows, width] float32 and `fixed` are what a replay reads, out [rows, width] what it writes."""

    x: Tensor
    fixed: Fixed
    graph: Graph | None = None
    out: Tensor | None = None
    trials: int = 0


@dataclass(eq=False)
class Lease:
    """What texts are remembered in, one after the other, and what was recorded there: it knows the addresses.

    places   what recordings read and write; held, or something else might come to its address without being noticed
    tapes    by (rows, slots looked through, states kept);  met  what came up before: its programs are compiled
    capture  how recordings are made, which share memory: new ones once they are void
    """

    layers: list[Memory]
    places: tuple[Tensor, ...] = ()
    tapes: dict[tuple[int, ...], _Tape] = field(default_factory=dict)
    met: set[tuple[int, ...]] = field(default_factory=set)
    capture: Capture | None = None

    def void(self) -> None:
        self.tapes.clear()
        self.capture = None


class LeasedCache(Cache):
    """A text's memory, taken over by the next text when it is dropped."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(lease.layers)
        self.lease = lease


class Replays:
    """What passes through some layers are recorded in.

    captures  a device to how recordings are made there
    refused   why nothing is recorded any more; empty as long as all is well
    """

    def __init__(self, blocks: Sequence[Any], captures: Callable[[torch.device], Capture] = on_cuda) -> None:
        ropes = [getattr(block.mixer, "rope", None) for block in blocks]
        self.ropes = list({id(rope): rope for rope in ropes if rope is not None}.values())
        self.refused = ""
        self.recorded = self.compared = self.replayed = 0
        self._captures = captures
        self._free: list[Lease] = []

    def __str__(self) -> str:
        if self.refused:
            return f"no: {self.refused}"
        return f"{self.recorded} recorded, {self.replayed} passes replayed, {self.compared} compared bit for bit"

    def cache(self, new: Callable[[], Sequence[Any]]) -> LeasedCache:
        """An empty memory of a text: one that no text needs any more, or the layers that `new` makes."""
        lease = self._free.pop() if self._free else Lease(list(new()))
        for layer in lease.layers:
            layer.forget()
        cache = LeasedCache(lease)
        finalize(cache, self._free.append, lease)
        return cache

    def run(
        self, x: Tensor, cache: Cache, length: int, through: Callable[[Tensor], Tensor], also: tuple[int, ...] = ()
    ) -> Tensor:
        """through(x), x [rows, any] float32 to [rows, any]: layers that read and write the cache behind `length` slots.

        also  what else the host's numbers are in it: a recording is of these
        """
        rows = x.shape[0]
        if rows > MOST or self.refused or not isinstance(cache, LeasedCache):
            return through(x)
        lease, until = cache.lease, LEAST
        while until < length + rows:
            until *= 2
        kept = sorted({one.kept(rows) for one in lease.layers if isinstance(one, RingCache)})
        key = (rows, until, *kept, *also)
        self._settle(lease, rows, until)
        if key not in lease.met:  # the first time compiles programs, which a recording must not
            lease.met.add(key)
            return through(x)
        tape = lease.tapes.get(key)
        if tape is None or tape.trials < TRIALS:
            return self._try(lease, key, x, length, through)
        self._replay(tape, x, length, lease)
        for layer in lease.layers:
            layer.advance(rows)
        assert tape.out is not None
        return tape.out.clone()

    def _settle(self, lease: Lease, rows: int, until: int) -> None:
        """Make room for a pass; where that moves something, what was recorded of it is void."""
        for layer in lease.layers:
            layer.make_room(rows)
        tables = [rope.until(until + REACH) for rope in self.ropes]
        places = (*tables, *(place for layer in lease.layers for place in _places(layer)))
        if len(places) != len(lease.places) or any(map(is_not, places, lease.places)):
            lease.places = places
            lease.void()

    def _try(
        self, lease: Lease, key: tuple[int, ...], x: Tensor, length: int, through: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The pass itself; then, from the same memory, its recording, which must do the same."""
        marks = [layer.mark() for layer in lease.layers]
        wanted = through(x)
        seen = _digest(lease, marks, spoil=True)
        self._back(lease, marks)
        tape = lease.tapes.get(key)
        try:
            if tape is None:
                tape = self._record(lease, x, key[1], through)
                self._back(lease, marks)
            self._replay(tape, x, length, lease)
        except RuntimeError as error:  # of CUDA, of what cannot be recorded, of memory: it goes on without
            self.refused = f"recording failed: {str(error).splitlines()[0]}"
            lease.void()
            self._back(lease, marks)
            return through(x)
        for layer in lease.layers:
            layer.advance(x.shape[0])
        assert tape.out is not None
        if not (_same(tape.out, wanted) and torch.equal(seen, _digest(lease, marks))):
            raise SystemFailure(  # and what else it wrote is not known: the text is not to be gone on with
                f"a recorded pass of {x.shape[0]} rows has other bits than the pass itself on {x.device}",
                hint="--no-graphs decodes as exactly, slower; please report the machine",
            )
        tape.trials += 1
        self.compared += 1
        lease.tapes[key] = tape
        return wanted

    def _record(self, lease: Lease, x: Tensor, until: int, through: Callable[[Tensor], Tensor]) -> _Tape:
        at = torch.zeros(1, dtype=torch.int64, device=x.device)
        positions = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        tape = _Tape(x.clone(), Fixed(positions, at, until))
        lease.capture = lease.capture or self._captures(x.device)
        for layer in lease.layers:
            layer.fixed = tape.fixed
        try:
            tape.graph, tape.out = lease.capture(lambda: through(tape.x))
        finally:
            for layer in lease.layers:
                layer.fixed = None
        self.recorded += 1
        return tape

    def _replay(self, tape: _Tape, x: Tensor, length: int, lease: Lease) -> None:
        rows = x.shape[0]
        rings = [layer.at for layer in lease.layers if isinstance(layer, RingCache)]
        numbers = torch.tensor([*range(length, length + rows), rings[0] if rings else 0], dtype=torch.int64)
        numbers = numbers.to(x.device)
        tape.fixed.positions.copy_(numbers[:rows])
        tape.fixed.at.copy_(numbers[rows:])
        tape.x.copy_(x)
        assert tape.graph is not None
        tape.graph.replay()
        self.replayed += 1

    @staticmethod
    def _back(lease: Lease, marks: Sequence[Any]) -> None:
        for layer, mark in zip(lease.layers, marks, strict=True):
            layer.back(mark)


def _places(layer: Memory) -> tuple[Tensor, ...]:
    """A layer's memory. Chunks of keys may be added: their addresses are read on the device."""
    return (layer.pages,) if isinstance(layer, KVCache) else (layer.conv, layer.memory)


def _digest(lease: Lease, marks: Sequence[Any], *, spoil: bool = False) -> Tensor:
    """Of what was written since `marks`, keys, values and states, sums of the bits of every row.

    spoil  and undo it, so that who is to write it must
    """
    sums = []
    for layer, mark in zip(lease.layers, marks, strict=True):
        for one in layer.written(mark):
            sums.append(one.view(_BITS[one.element_size()]).sum(-1, dtype=torch.int64).flatten())
            if spoil:
                one.fill_(float("nan"))
    return torch.cat(sums)


_BITS: Final = {2: torch.int16, 4: torch.int32}


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))
