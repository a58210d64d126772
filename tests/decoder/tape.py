"""What a CUDA graph is, on a CPU: the operations of a function, on the tensors that they were on, done again in order.

As a graph does, it knows no host code: numbers that the host had are those of the recording, and a read of a tensor by
the host, or a copy from it, cannot be recorded. Kernels run in triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.replay import Replays
from mtptools.decoder.trunk import Trunk

START = CHUNK - 2
"""Tokens before the first pass, of zeros: so the text crosses a chunk of the cache."""

PASSES = (*((1, 1),) * 6, (3, 2), (3, 1), (3, 3), (3, 2), (1, 1))
"""(rows, how many of them are kept)"""


READS = ("aten._local_scalar_dense.default", "aten.lift_fresh.default", "aten.item.default")
"""By the host, or from it."""

PRODUCTS = ("addmm", "baddbmm", "bmm", "linear", "matmul", "mm")
"""By a library, which may add up in another order while it is recorded."""


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []
        self.made: list[Tensor] = []
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        if func.overloadpacket.__name__ in PRODUCTS:
            raise RuntimeError(f"a library's product: {func}")
        out = func(*args, **kwargs)
        known = {_storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        fresh = [isinstance(one, Tensor) and _storage(one) not in known for one in tree_leaves(out)]
        self.made += [one for one, new in zip(tree_leaves(out), fresh, strict=True) if new]
        self.launches += func._schema.is_mutable or (any(fresh) and "empty" not in str(func))

        def again() -> None:
            for old, new, own in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), fresh, strict=True):
                if own:
                    old.copy_(new)

        self.steps.append(again)
        return out

    def launched(self, executor: GridExecutor, args: Any, kwargs: Any) -> None:
        self.launches += 1
        self.steps.append(lambda: _EXECUTE(executor, *args, **kwargs))

    def replay(self) -> None:
        for step in self.steps:
            step()

    def spoil(self) -> None:
        """A recording does nothing, and kernels were not run: before the first replay its tensors hold anything."""
        for one in self.made:
            if one.is_floating_point():
                one.fill_(float("nan"))


_EXECUTE = GridExecutor.__call__
_READS = ("tolist", "numpy", "item", "__bool__", "__int__", "__float__")


@contextmanager
def recording(tape: Tape) -> Iterator[None]:
    def refuse(self: Tensor, *args: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing: a read by the host")

    def execute(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        tape.launched(executor, args, kwargs)

    with pytest.MonkeyPatch.context() as patch:
        for read in _READS:
            patch.setattr(torch.Tensor, read, refuse)
        patch.setattr(GridExecutor, "__call__", execute)
        with tape:
            yield


def on_tape(run: Callable[[], Tensor]) -> tuple[Tape, Tensor]:
    """A `replay.Capture`."""
    tape = Tape()
    with recording(tape):
        out = run()
    tape.spoil()
    return tape, out


def _storage(x: Tensor) -> int:
    return x.untyped_storage()._cdata


@torch.inference_mode()
def decoded(trunk: Trunk, passes: Sequence[tuple[int, int]] = PASSES) -> list[Tensor]:
    """The states that are kept of each pass over a text."""
    cache = trunk.new_cache()
    cache.length = START
    for layer in cache.layers:
        if isinstance(layer, KVCache):
            layer.make_room(START)
            layer.advance(START)
    found = []
    for number, (rows, kept) in enumerate(passes):
        if rows > 1:
            cache.start()
        found.append(trunk.forward([5 + 7 * number + row for row in range(rows)], cache).pre[:kept])
        if rows > 1:
            cache.rollback(cache.length - rows + kept)
    return found


def recorded(trunk: Trunk, capture: Any = on_tape) -> tuple[Trunk, Replays]:
    ours = trunk.recording(lambda device: capture)
    assert ours.replays is not None
    return ours, ours.replays


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(one, other, strict=True))
