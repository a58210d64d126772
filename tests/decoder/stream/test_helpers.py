"""What is decoded ahead is what decoding at the use gives, whichever thread does it, and no more than has room."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mtptools.decoder.packed import Packed
from mtptools.decoder.parts import Part
from mtptools.decoder.stream import helpers as module
from mtptools.decoder.stream.helpers import Coming, Helpers
from mtptools.errors import CorruptError
from mtptools.tensors import NOWHERE, Blob, Tensor
from tests.decoder.stream.given import CPU

COLUMNS = 8
SIZE = 40 * COLUMNS * 4
"""Bytes of a matrix of 40 rows: ten pieces of 4."""

Hook = Callable[[str, int], None]
"""Called with a tensor's name and the first row of a piece, where it is decoded."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_VALUES", 4 * COLUMNS)


def values(name: str, rows: int) -> np.ndarray:
    return np.random.default_rng(sum(name.encode())).standard_normal((rows, COLUMNS)).astype(np.float32)


def coming(name: str, rows: int = 40, hook: Hook | None = None) -> Coming:
    """A matrix of two tensors, the second of which puts its rows elsewhere."""

    def tensor(label: str, n: int) -> Tensor:
        def decode(start: int, stop: int) -> np.ndarray:
            if hook is not None:
                hook(label, start)
            return values(label, n)[start:stop]

        return Tensor(label, (n, COLUMNS), "F32", (Blob(NOWHERE, 0, n * COLUMNS * 4),), rows=decode)

    plain, turned = tensor(name, rows - 4), tensor(f"{name}, turned", 4)
    parts = (Part.whole(plain), Part(turned, 0, 4, to_row=np.array([2, 0, 3, 1])))
    return Coming(Packed(parts, (rows, COLUMNS), torch.float32, CPU, "a file"))


def expected(name: str, rows: int = 40) -> torch.Tensor:
    turned = np.empty((4, COLUMNS), np.float32)
    turned[[2, 0, 3, 1]] = values(f"{name}, turned", 4)
    return torch.from_numpy(np.concatenate((values(name, rows - 4), turned)))


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "decoding ahead"]


def until(true: Callable[[], bool]) -> None:
    stop = time.monotonic() + 10
    while not true():
        assert time.monotonic() < stop, "it never was"
        time.sleep(0.001)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """With so many that multiply."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 6], ids=["one helper", "three"])
@pytest.mark.parametrize("room", [0, 3 * SIZE, 100 * SIZE])
def test_whoever_decodes(room: int, count: int) -> None:
    """Values and room, with pieces that take any time; matrices are asked for in any order, whole and by rows."""
    rng = random.Random(room + count)
    names = [f"matrix {n}" for n in range(25)]
    who: set[str] = set()
    most = 0

    def hook(label: str, start: int) -> None:
        nonlocal most
        who.add(threading.current_thread().name)
        most = max(most, work.under_way)
        time.sleep(rng.choice((0, 0, 2e-4, 1e-3)))

    with threads(count), Helpers(room, 100 * SIZE) as work:
        assert len(running()) == max(1, count // 2)
        given = {name: coming(name, hook=hook) for name in names}
        work.expect(list(given.values())[:20])
        order = names[:10] + rng.sample(names[10:], 15)
        for name in order:
            if rng.random() < 0.5:
                some = rng.randrange(1, 41)
                assert torch.equal(work.take(given[name], some)[:some], expected(name)[:some])
            time.sleep(rng.choice((0, 1e-3, 3e-3)))
            assert torch.equal(work.take(given[name]), expected(name))
            assert torch.equal(work.take(given.pop(name)), expected(name)), "and again"
        assert work.under_way == 0
        assert torch.get_num_threads() == count
    assert "decoding ahead" in who
    assert most <= max(room, SIZE)
    assert running() == []


def test_threads_to_come_are_as_they_were() -> None:
    """Helpers tell torch to use one thread, which it takes for all that begin later."""
    seen: list[int] = []
    with threads(4):
        with Helpers(SIZE, SIZE) as work:
            one = coming("one")
            work.expect([one])
            until(lambda: one.ready == 40)
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
    assert seen == [4]


def test_it_is_decoded_while_another_thread_is_busy() -> None:
    """This one does nothing but wait for it."""
    with Helpers(10 * SIZE, 10 * SIZE) as work:
        one, two = coming("one"), coming("two")
        work.expect([one, two])
        until(lambda: one.ready == two.ready == 40)
        assert work.under_way == 2 * SIZE


def test_no_more_than_there_is_room_for() -> None:
    with Helpers(2 * SIZE, 10 * SIZE) as work:
        given = [coming(f"{n}") for n in range(5)]
        work.expect(given)
        until(lambda: given[1].ready == 40)
        time.sleep(0.02)
        assert [one.out is None for one in given] == [False, False, True, True, True]
        work.take(given[0])
        until(lambda: given[2].ready == 40)
        work.forget([given[1]])  # nobody asked for it
        until(lambda: given[3].ready == 40)
        time.sleep(0.02)
        assert given[4].out is None
        assert torch.equal(work.take(given[4]), expected("4")), "whoever needs it now does not wait for room"


def test_rows_are_given_before_all_are_there() -> None:
    """The rest waits for a thread that stands still."""
    go = threading.Event()

    def hook(label: str, start: int) -> None:
        if threading.current_thread().name == "decoding ahead" and start >= 8:
            go.wait(10)

    with Helpers(SIZE, SIZE) as work:
        one = coming("one", hook=hook)
        work.expect([one])
        until(lambda: one.ready == 8 and bool(one.begun))
        assert torch.equal(work.take(one, 8)[:8], expected("one")[:8])
        assert one.ready == 8
        go.set()
        assert torch.equal(work.take(one), expected("one"))


@pytest.mark.parametrize("where", [0, 12])
@pytest.mark.parametrize("entered", [True, False])
def test_what_cannot_be_decoded(where: int, entered: bool) -> None:
    """The first piece that fails is told, though a later one fails before; rows before it are good."""
    later = threading.Event()

    def hook(label: str, start: int) -> None:
        if start == where:
            later.wait(0.1)
            raise CorruptError("the first", where=label, hint="")
        if start > where:
            later.set()
            raise CorruptError("a later one", where=label, hint="")

    with threads(4):
        work = Helpers(SIZE, SIZE)
        one, two = coming("one", hook=hook), coming("two")
        if entered:
            with work:
                work.expect([one, two])
                _fails(work, one, where)
                assert torch.equal(work.take(two), expected("two")), "the next one is not touched by it"
        else:
            _fails(work, one, where)
    assert running() == []


def _fails(work: Helpers, one: Coming, where: int) -> None:
    if where:
        assert torch.equal(work.take(one, where)[:where], expected("one")[:where])
    for _ in range(2):
        with pytest.raises(CorruptError, match="the first"):
            work.take(one)


def test_where_a_helper_finds_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lets it be; who needs the matrix tries again, when something may be free."""
    work = Helpers(10 * SIZE, 10 * SIZE)
    start = work._start

    def full(one: Coming) -> None:
        if threading.current_thread().name == "decoding ahead":
            raise MemoryError
        start(one)

    monkeypatch.setattr(work, "_start", full)
    with work:
        one = coming("one")
        work.expect([one])
        until(lambda: not work._queue)
        assert torch.equal(work.take(one), expected("one"))


def test_an_end_in_the_middle() -> None:
    """Each thread ends after the piece that it is at."""
    decoded: list[int] = []

    def hook(label: str, start: int) -> None:
        decoded.append(start)
        time.sleep(0.05)

    one = coming("one", hook=hook)
    with pytest.raises(KeyboardInterrupt), Helpers(SIZE, SIZE) as work:  # noqa: PT012  # what comes before is needed
        work.expect([one, coming("two", hook=hook)])
        until(lambda: bool(decoded))
        raise KeyboardInterrupt
    assert len(decoded) <= 2
    assert running() == []
    assert work.under_way == 0


@pytest.mark.skipif(os.name != "posix", reason="signals of this kind are POSIX's")
def test_control_c_while_it_waits() -> None:
    """A piece that takes long is not waited for with deaf ears: no more is begun."""
    begun: list[int] = []

    def hook(label: str, start: int) -> None:
        begun.append(start)
        if threading.current_thread().name == "decoding ahead":
            time.sleep(0.3)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Helpers(SIZE, SIZE) as work:  # noqa: PT012  # the signal comes in between
        one = coming("one", rows=12, hook=hook)
        work.expect([one])
        until(lambda: bool(begun))
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        work.take(one)
    assert time.monotonic() - started < 2
    assert running() == []


@pytest.mark.parametrize("fails", [True, False])
def test_what_is_forgotten_is_as_if_nobody_had_begun(fails: bool) -> None:
    """A piece that a helper is at then ends where nobody looks."""
    go = threading.Event()

    def hook(label: str, start: int) -> None:
        if threading.current_thread().name == "decoding ahead" and start == 8:
            go.wait(10)
            if fails:
                raise CorruptError("too late", where=label, hint="")

    one = coming("one", hook=hook)
    with Helpers(SIZE, 2 * SIZE) as work:
        work.expect([one])
        until(lambda: 8 in one.begun)
        work.forget([one])
        assert work.under_way == 0
        assert torch.equal(work.take(one), expected("one"))
        go.set()
    assert torch.equal(work.take(one), expected("one"))


def test_it_goes_on_without_helpers() -> None:
    """What was expected when they ended is decoded by whoever needs it."""
    one, two = coming("one"), coming("two")
    with Helpers(10 * SIZE, 10 * SIZE) as work:
        work.expect([one, two])
        until(lambda: one.ready == 40)
    assert torch.equal(work.take(two), expected("two"))
    assert torch.equal(work.take(one), expected("one"))


def test_a_piece_that_is_interrupted_is_not_lost() -> None:
    """By Ctrl-C, in the thread that needs it."""
    impatient = iter((True, False))

    def hook(label: str, start: int) -> None:
        if start == 8 and next(impatient, False):
            raise KeyboardInterrupt

    work, one = Helpers(SIZE, SIZE), coming("one", hook=hook)
    with pytest.raises(KeyboardInterrupt):
        work.take(one)
    assert one.ready == 8
    assert torch.equal(work.take(one), expected("one"))


def test_two_share_memory() -> None:
    """What one has no use for the other takes."""
    first, second = Helpers(SIZE, 2 * SIZE), Helpers(SIZE, 2 * SIZE)
    second.share(first)
    for name in ("one", "two", "three"):
        for work in (first, second):
            assert torch.equal(work.take(coming(name)), expected(name))
    assert first._buffers.held < 2 * SIZE
    assert first._buffers.limit == 3 * SIZE
