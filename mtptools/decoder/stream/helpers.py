"""Decoding what is next beside the thread that multiplies.

A matrix is decoded in pieces of some rows, in the order in which it will be needed, by threads of their own; who needs
rows that nobody has begun decodes them. So no thread waits for one that waits, and a single thread can do all of it.
Reading, decoders that are compiled and torch's copies run beside Python; the values are those of decoding at the use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from threading import Condition, Thread
from types import TracebackType

import torch
from torch import Tensor

from mtptools.decoder.packed import Packed
from mtptools.decoder.parts import CHUNK_VALUES, Part, fill
from mtptools.decoder.stream.buffers import Buffers
from mtptools.decoder.stream.read_ahead import WINDOW, announce, stored
from mtptools.tensors import Blob

__all__ = ["Coming", "Helpers"]

Piece = tuple[int, int, Part]
"""First row, row after the last, what they are made of."""


class Coming:
    """A matrix on its way. Only `Helpers` touches it, under its lock.

    pieces  that nobody has begun;  begun  first rows of those that somebody is decoding
    out     where they are decoded to, None before the first;  taken  somebody has asked for it
    failed  the first row of the first piece that could not be decoded, and why
    """

    __slots__ = ("announced", "begun", "failed", "matrix", "nbytes", "out", "pieces", "rows", "stored", "taken")

    def __init__(self, matrix: Packed) -> None:
        self.matrix, self.rows = matrix, matrix.shape[0]
        self.nbytes = matrix.numel() * matrix.dtype.itemsize
        self.stored = sum(part.n_rows * part.tensor.row_bytes for part in matrix.parts)
        self.announced = False
        self.reset()

    def reset(self) -> None:
        """Nothing is decoded; pieces that are begun end in memory that nobody looks at."""
        self.pieces = deque(_pieces(self.matrix))
        self.begun: set[int] = set()
        self.out: Tensor | None = None
        self.failed: tuple[int, Exception] | None = None
        self.taken = False

    @property
    def ready(self) -> int:
        """Rows from the first on that are decoded."""
        ends = [*self.begun, self.pieces[0][0] if self.pieces else self.rows]
        return min(ends if self.failed is None else [*ends, self.failed[0]])


def _pieces(matrix: Packed) -> Iterator[Piece]:
    """Rows that `fill` decodes at a time; rows that change places are one piece."""
    at, step = 0, max(1, CHUNK_VALUES // matrix.shape[-1])
    for part in matrix.parts:
        size = step if part.to_row is None else part.n_rows
        for start in range(0, part.n_rows, size):
            stop = min(start + size, part.n_rows)
            yield at + start, at + stop, part if stop - start == part.n_rows else part.rows(start, stop)
        at += part.n_rows


class Helpers:
    """Decodes matrices before they are needed, while it is entered.

    room   bytes that may be decoded or under way before anybody asks for them; one matrix always may
    limit  bytes of all matrices, in use or not: see `Buffers`
    """

    def __init__(self, room: int, limit: int) -> None:
        self.room = room
        self.under_way = 0
        """Bytes that nobody has asked for yet."""
        self._queue: deque[Coming] = deque()
        self._buffers = Buffers(limit)
        self._changed = Condition()
        self._threads: list[Thread] = []
        self._entered = 0

    def __enter__(self) -> Helpers:
        """Can be entered again within. One thread for two that multiply: those decode too, where they would wait."""
        self._entered += 1
        if self._entered == 1:
            count = max(1, torch.get_num_threads() // 2)
            self._threads = [Thread(target=self._work, name="decoding ahead", daemon=True) for _ in range(count)]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Forgets what nobody has asked for; threads end after the piece that they are at."""
        self._entered -= 1
        if self._entered:
            return
        with self._changed:
            left = list(self._queue)
        self.forget(left)
        for thread in self._threads:
            thread.join()
        self._threads = []
        torch.set_num_threads(torch.get_num_threads())  # of threads to come: `_work` has changed it

    def expect(self, matrices: Iterable[Coming]) -> None:
        """These are needed next, in this order, behind what is expected already."""
        if self._entered:
            with self._changed:
                self._queue += matrices
                self._changed.notify_all()

    def forget(self, matrices: Iterable[Coming]) -> None:
        """These are not expected any more; what is decoded of one that nobody has asked for is lost."""
        known = list(matrices)
        with self._changed:
            self._drop(known)
            for one in known:
                if one.out is not None and not one.taken:
                    self.under_way -= one.nbytes
                    one.reset()
            self._changed.notify_all()

    def _drop(self, matrices: Sequence[Coming]) -> None:
        gone = {id(one) for one in matrices}
        self._queue = deque(one for one in self._queue if id(one) not in gone)

    def share(self, other: Helpers) -> None:
        """Take memory from where another does, which then may hold what both have under way."""
        if self._buffers is not other._buffers:
            other._buffers.limit += self.room
            self._buffers = other._buffers

    @torch.inference_mode()
    def take(self, one: Coming, rows: int | None = None) -> Tensor:
        """The matrix, of which the first rows (None: all) are decoded. Raises what `fill` raises."""
        wanted = one.rows if rows is None else rows
        while True:
            with self._changed:
                if one.out is None:
                    self._start(one)
                elif not one.taken:
                    self.under_way -= one.nbytes
                    self._changed.notify_all()
                one.taken = True
                while (ready := one.ready) < wanted and not (one.pieces and one.pieces[0][0] < wanted):
                    if one.failed is not None and one.failed[0] == ready:
                        raise one.failed[1]
                    self._changed.wait()
                if ready >= wanted and one.out is not None:
                    if not one.pieces:  # else it would be held until what stands before it has room
                        self._drop([one])
                    return one.out
            self._piece(one)

    def _start(self, one: Coming) -> None:
        one.out = self._buffers.lend(one.matrix.shape, one.matrix.dtype)

    def _piece(self, one: Coming) -> None:
        """Decode the next piece, if there is one."""
        with self._changed:
            if not one.pieces or one.out is None:
                return
            piece, begun = one.pieces.popleft(), one.begun
            first, stop, part = piece
            rows = one.out.view(-1, one.matrix.shape[-1])[first:stop]
            begun.add(first)
        failed, done = None, False
        try:
            fill(rows, [part], one.matrix.where)
            done = True
        except Exception as error:
            failed = first, error
        finally:
            with self._changed:
                begun.remove(first)
                if begun is one.begun:
                    self._note(one, None if done else piece, failed)
                self._changed.notify_all()

    @staticmethod
    def _note(one: Coming, left: Piece | None, failed: tuple[int, Exception] | None) -> None:
        """What became of a piece: decoded, impossible, or left by whoever was interrupted."""
        if failed is not None:  # the first in the matrix is told, whichever thread comes first
            one.pieces.clear()
            if one.failed is None or failed[0] < one.failed[0]:
                one.failed = failed
        elif left is not None:
            one.pieces.appendleft(left)

    @torch.inference_mode()
    def _work(self) -> None:
        torch.set_num_threads(1)  # of this thread: its copies need no team of their own
        while True:
            with self._changed:
                while (one := self._open()) is None and self._entered:
                    self._changed.wait()
                if one is None or not self._entered:
                    return
                news = self._news()
            announce(news)
            self._piece(one)

    def _open(self) -> Coming | None:
        """The first matrix with a piece to decode, if there is room for it."""
        while self._queue and not self._queue[0].pieces:
            self._queue.popleft()
        if not self._queue:
            return None
        one = self._queue[0]
        if one.out is None:
            if self.under_way and self.under_way + one.nbytes > self.room:
                return None
            try:
                self._start(one)
            except MemoryError:  # who needs it tries again
                self._queue.popleft()
                return self._open()
            self.under_way += one.nbytes
        return one

    def _news(self) -> list[Blob]:
        """What of the file is within the window from here, and was not announced yet."""
        nbytes = 0
        found: list[Blob] = []
        for one in self._queue:
            if nbytes > WINDOW:
                break
            nbytes += one.stored
            if not one.announced:
                one.announced = True
                found += stored(one.matrix.parts)
        return found
