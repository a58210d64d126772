"""Memory is lent once at a time, comes back by itself, and does not grow beyond what was asked for."""

from __future__ import annotations

import threading

import pytest
import torch

from mtptools.decoder.ops import ALIGNMENT
from mtptools.decoder.stream.buffers import Buffers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lent(dtype: torch.dtype) -> None:
    given = Buffers(1 << 20)
    for shape in ((3, 5), (1, 1), (2, 3, 4), (1000,)):
        one = given.lend(shape, dtype)
        assert (tuple(one.shape), one.dtype) == (shape, dtype)
        assert one.is_contiguous()
        assert one.data_ptr() % ALIGNMENT == 0


def test_used_again_when_nobody_refers_to_it() -> None:
    """Not before: a view of a view holds it, in another thread too."""
    given = Buffers(1 << 20)
    one = given.lend((4, 100), torch.float32)
    first, view = one.data_ptr(), one.view(-1)[5:7].view(2, 1)
    del one
    two = given.lend((4, 100), torch.float32)
    assert two.data_ptr() != first
    view.fill_(7.0)
    del view
    assert given.lend((100, 4), torch.float32).data_ptr() == first
    held = given.held

    def borrow() -> None:
        given.lend((4, 100), torch.float32)

    for _ in range(20):
        thread = threading.Thread(target=borrow)
        thread.start()
        thread.join()
    assert given.held == held


def test_idle_memory_of_another_size_is_let_go() -> None:
    given = Buffers(10_000)
    for n in (1000, 1500, 500, 2000, 1000, 2400):
        given.lend((n,), torch.float32)
        assert given.held <= 10_000
    lent = [given.lend((1000,), torch.float32) for _ in range(4)]
    assert given.held > 16_000, "what is needed is given"
    del lent
    given.lend((2400,), torch.float32)
    assert given.held <= 10_000
