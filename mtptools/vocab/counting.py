"""How often each token occurs in corpora, by several processes in bounded memory.

A process takes about 100 MB beside what the tokenizer takes to be read, whatever the text: what is read is handed on by
the megabyte, of distinct words 32 MB are held, and a long word is encoded at once. Only JSON is read by the record (32
MB at most), a JSON list whole (64 MB).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mtptools.errors import InputError, MissingExtraError
from mtptools.vocab.corpus import BLOCK, EVERY, LEAST_DOCUMENTS, Files, Left, find, pieces
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
    skipped    files of folders that are not text or not to their end, and why
    textless   records of JSON without text
    repeated   characters that were to be held out and are in `train`, because they had stood there word for word
    """

    domain: str
    train: NDArray[np.int64]
    held: NDArray[np.int64]
    documents: int
    nbytes: int
    skipped: tuple[tuple[Path, str], ...] = ()
    textless: int = 0
    repeated: int = 0


def count(
    sources: Mapping[str, Sequence[Path]],
    tokenizer_json: str,
    size: int,
    *,
    whole: Collection[str] = (),
    processes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Counted]:
    """Token counts of each domain, in the order of `sources`.

    sources         domain -> files and folders
    tokenizer_json  the contents of tokenizer.json; of a GGUF, `load_tokenizer(ckpt).backend.to_str()`
    size            of the target's vocabulary: rows of its embedding
    whole           domains of which nothing need be held out, however small
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
    documents, left = dict.fromkeys(sources, 0), {domain: Left() for domain in sources}
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    jobs = _jobs(found, documents, left)
    sums = (
        alone(tokenizer_json, size, jobs, tell)
        if processes <= 1
        else shared(tokenizer_json, size, jobs, tell, processes)
    )
    out = []
    for domain in sources:
        (train, held), nbytes = sums[domain]
        beside = left[domain]
        skipped = tuple((found[domain].skipped | beside.skipped).items())
        one = Counted(domain, train, held, documents[domain], nbytes, skipped, beside.textless, beside.repeated)
        _check(one, sources[domain], must_hold=domain not in whole)
        out.append(one)
    return out


def _jobs(found: Mapping[str, Files], documents: dict[str, int], left: Mapping[str, Left]) -> Iterator[Job]:
    """Counts the documents and tells what was left, too."""
    for domain, files in found.items():
        texts: tuple[list[str], list[str]] = ([], [])
        held_back = before = 0
        for piece in pieces(files, left[domain]):
            documents[domain] += piece.begins
            texts[piece.held].append(piece.text)
            held_back += len(piece.text)
            if held_back >= JOB:
                yield Job(domain, texts, piece.read - before)
                texts, held_back, before = ([], []), 0, piece.read
        yield Job(domain, texts, files.nbytes - before)


def _check(one: Counted, paths: Sequence[Path], *, must_hold: bool) -> None:
    where, tokens = ", ".join(map(str, paths)), int(one.train.sum())
    if not tokens and not one.held.any():
        why = f": {one.skipped[0][0].name}: {one.skipped[0][1]}" if one.skipped else ""
        raise InputError(f"the corpus {one.domain} has no tokens{why}", where=where, hint="give one with text")
    if one.held.any() or not must_hold:
        return
    if one.repeated:
        raise InputError(
            f"the corpus {one.domain} repeats itself: all that was to be held out stands word for word in the rest",
            where=where,
            hint="give text that does not repeat itself, or more of it",
        )
    raise InputError(
        f"the corpus {one.domain} is too small to hold a part of it out ({tokens} tokens)",
        where=where,
        hint=f"give {LEAST_DOCUMENTS} documents, or {BLOCK * EVERY * 2 // 1000} KB of text and more",
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
