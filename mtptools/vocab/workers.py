"""Jobs counted here, or in processes of their own that end when this one does."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import MtpToolsError, SystemFailure
from mtptools.vocab.encoder import Encoder
from mtptools.vocab.tally import Job, Tally
from mtptools.vocab.words import Words

__all__ = ["Sums", "alone", "shared"]

Sums = dict[str, tuple[NDArray[np.int64], int]]
"""domain -> tokens [2, size] (train, held out), bytes of UTF-8"""

AHEAD: Final = 2  # jobs a process has: one in hand and one waiting
PARALLEL: Final = "TOKENIZERS_PARALLELISM"  # the tokenizers library's own threads: processes are enough
ENDING: Final = 5.0  # seconds

Done = Callable[[int], None]
"""Told the bytes of each job that is done."""


def alone(tokenizer_json: str, size: int, jobs: Iterable[Job], done: Done) -> Sums:
    with _one_thread():
        words = Words.of(tokenizer_json)  # before the tokenizer, which then takes the memory that this has freed
        tally = Tally(Encoder(tokenizer_json), words, size)
        for job in jobs:
            tally.add(job)
            done(job.nbytes)
        return tally.sums()


def shared(tokenizer_json: str, size: int, jobs: Iterable[Job], done: Done, processes: int) -> Sums:
    """Raises what a process raised, and SystemFailure when one ended without a word."""
    spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks of torch and tokenizers
    workers: dict[Connection, BaseProcess] = {}
    sums: Sums = {}
    try:
        with _one_thread():  # inherited
            for _ in range(processes):
                here, there = spawn.Pipe()
                worker = spawn.Process(target=_work, args=(there, size), daemon=True)
                worker.start()
                there.close()  # else the end of the process would not end the pipe
                workers[here] = worker
        for pipe in workers:  # not with the start: a process that is stopped while it reads its start says so aloud
            _send(pipe, workers, tokenizer_json)
        words = Words.of(tokenizer_json)  # made once, while the processes read the tokenizer
        for pipe in workers:
            _send(pipe, workers, words)
        free = [pipe for pipe in workers for _ in range(AHEAD)]
        for job in jobs:
            if not free:
                free = [_answer(pipe, workers[pipe], done) for pipe in _ready(workers)]
            _send(free.pop(0), workers, job)
        for pipe in workers:
            _send(pipe, workers, None)
        waiting = set(workers)
        while waiting:
            for pipe in cast("list[Connection]", wait(list(waiting))):
                said = _received(pipe, workers[pipe])
                if isinstance(said, int):
                    done(said)
                else:
                    _add(sums, said)
                    waiting.remove(pipe)
    finally:
        for pipe, ended in workers.items():
            pipe.close()
            ended.terminate()
        for ended in workers.values():
            ended.join(ENDING)
    return sums


def _work(pipe: Connection, size: int) -> None:
    """A process: adds jobs up until None comes; tells the bytes of each, then the sums, or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the one that started this ends it
    try:
        tally = Tally(Encoder(pipe.recv()), pipe.recv(), size)
        while (job := pipe.recv()) is not None:
            tally.add(job)
            pipe.send(job.nbytes)
        pipe.send(tally.sums())
    except MtpToolsError as error:
        pipe.send((type(error), error.args, vars(error)))
    except (EOFError, OSError):
        return  # nobody is there any more


def _send(pipe: Connection, workers: dict[Connection, BaseProcess], what: str | Words | Job | None) -> None:
    try:
        pipe.send(what)
    except OSError:
        while True:  # ended: its last words are an error, or there are none
            _received(pipe, workers[pipe])


def _ready(workers: dict[Connection, BaseProcess]) -> list[Connection]:
    return cast("list[Connection]", wait(list(workers)))


def _answer(pipe: Connection, worker: BaseProcess, done: Done) -> Connection:
    done(_received(pipe, worker))
    return pipe


def _received(pipe: Connection, worker: BaseProcess) -> Any:
    """Raises what the process raised."""
    try:
        said = pipe.recv()
    except (EOFError, OSError) as error:
        worker.join(ENDING)
        raise SystemFailure(
            f"a process that counts tokens ended by itself (exit code {worker.exitcode})",
            hint="if memory was short, count with one process: --processes 1",
        ) from error
    if isinstance(said, tuple):
        kind, arguments, attributes = said
        raised = kind.__new__(kind, *arguments)
        raised.__dict__.update(attributes)
        raise raised
    return said


def _add(sums: Sums, more: Sums) -> None:
    for domain, (tokens, nbytes) in more.items():
        before = sums.get(domain)
        sums[domain] = (tokens, nbytes) if before is None else (before[0] + tokens, before[1] + nbytes)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = os.environ.get(PARALLEL)
    os.environ[PARALLEL] = "false"
    try:
        yield
    finally:
        del os.environ[PARALLEL]
        if before is not None:
            os.environ[PARALLEL] = before
