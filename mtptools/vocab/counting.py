"""How often each token occurs in corpora: one pass, several processes, bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import InputError, MissingExtraError
from mtptools.vocab.corpus import BLOCK, EVERY, LEAST_DOCUMENTS, Files, find, pieces
from mtptools.vocab.tally import Job
from mtptools.vocab.workers import alone, shared

__all__ = ["Counted", "count"]

JOB: Final = 1 << 20  # characters that a process is given at once
SMALL: Final = 1 << 23  # bytes of corpora that are counted before a second process has read the tokenizer


@dataclass(frozen=True)
class Counted:
    """Occurrences of each token id in one domain.

    train      [vocab] int64
    held       [vocab] int64, of the held-out part, which `train` has no token of
    documents  in both
    nbytes     of the text as UTF-8, both
    """

    domain: str
    train: NDArray[np.int64]
    held: NDArray[np.int64]
    documents: int
    nbytes: int


def count(
    sources: Mapping[str, Sequence[Path]],
    tokenizer_json: str,
    size: int,
    *,
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Counted]:
    """Token counts of each domain, in the order of `sources`.

    sources         domain -> files and folders
    tokenizer_json  the contents of tokenizer.json; of a GGUF, `load_tokenizer(ckpt).backend.to_str()`
    size            of the target's vocabulary: rows of its embedding
    processes       of one thread each; None: one a usable core; 1 starts none
    progress        called with (bytes read, bytes in all), as they are on disk

    Text is encoded as `Tokenizer.encode` does: "<|im_start|>" in it counts as that token, because it is what the
    runtime makes of a prompt with these letters; nothing is put before or behind. Counts
    are the same for any number of processes.
    Raises InputError, TokenizerError (an id of `size` or more), MissingExtraError, SystemFailure.
    """
    if find_spec("tokenizers") is None:
        raise MissingExtraError("tokenizers", "decoder", "counting tokens")
    found = {domain: find(paths) for domain, paths in sources.items()}
    total = sum(files.nbytes for files in found.values())
    if processes is None:
        processes = _cores() if total > SMALL else 1
    documents = dict.fromkeys(sources, 0)
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    jobs = _jobs(found, documents)
    sums = (
        alone(tokenizer_json, size, jobs, tell)
        if processes <= 1
        else shared(tokenizer_json, size, jobs, tell, processes)
    )
    out = []
    for domain in sources:
        (train, held), nbytes = sums[domain]
        _check(domain, int(train.sum()), int(held.sum()), sources[domain])
        out.append(Counted(domain, train, held, documents[domain], nbytes))
    return out


def _jobs(found: Mapping[str, Files], documents: dict[str, int]) -> Iterator[Job]:
    """Counts the documents, too."""
    for domain, files in found.items():
        texts: tuple[list[str], list[str]] = ([], [])
        held_back = before = 0
        for piece in pieces(files):
            documents[domain] += piece.begins
            texts[piece.held].append(piece.text)
            held_back += len(piece.text)
            if held_back >= JOB:
                yield Job(domain, texts, piece.read - before)
                texts, held_back, before = ([], []), 0, piece.read
        yield Job(domain, texts, files.nbytes - before)


def _check(domain: str, train: int, held: int, paths: Sequence[Path]) -> None:
    where = ", ".join(map(str, paths))
    if not train + held:
        raise InputError(f"the corpus {domain} has no tokens", where=where, hint="give one with text")
    if not held:
        raise InputError(
            f"the corpus {domain} is too small to hold a part of it out ({train} tokens)",
            where=where,
            hint=f"give {LEAST_DOCUMENTS} documents, or {BLOCK * EVERY * 2 // 1000} KB of text and more",
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
