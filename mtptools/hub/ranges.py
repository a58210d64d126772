"""Runs of bytes: which of a file have arrived, which are missing, and how to ask for them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

__all__ = ["Range", "absent", "add", "coalesced", "covered", "joined", "parts"]

Range = tuple[int, int]  # [start, stop)


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes as sorted ranges that do not touch."""
    out: list[Range] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return out


def add(have: list[Range], start: int, stop: int) -> None:
    """Put [start, stop) into `have`, sorted and joined, which stays so."""
    low = bisect_left(have, start, key=lambda run: run[1])
    high = bisect_right(have, stop, key=lambda run: run[0])
    if low < high:
        start, stop = min(start, have[low][0]), max(stop, have[high - 1][1])
    have[low:high] = [(start, stop)]


def covered(ranges: Iterable[Range]) -> int:
    """How many bytes ranges that do not overlap hold."""
    return sum(stop - start for start, stop in ranges)


def absent(have: Sequence[Range], start: int, stop: int) -> list[Range]:
    """What [start, stop) holds that `have`, sorted and joined, does not."""
    out: list[Range] = []
    for low, high in have:
        if high <= start:
            continue
        if low >= stop:
            break
        if low > start:
            out.append((start, low))
        start = max(start, high)
    if start < stop:
        out.append((start, stop))
    return out


def coalesced(wanted: Sequence[Range], gap: int, extra: int) -> tuple[list[Range], int]:
    """`wanted` (joined) with gaps of at most `gap` closed, the smallest first, for `extra` bytes in all.

    Returns the ranges and how many bytes of `extra` were spent.
    """
    gaps = sorted((b[0] - a[1], i) for i, (a, b) in enumerate(pairwise(wanted)))
    closed: set[int] = set()
    spent = 0
    for size, i in gaps:
        if size > gap or spent + size > extra:
            break
        closed.add(i)
        spent += size
    return joined([*wanted, *((wanted[i][1], wanted[i + 1][0]) for i in closed)]), spent


def parts(ranges: Iterable[Range], size: int) -> list[Range]:
    """The ranges cut to at most `size` bytes each."""
    return [(at, min(at + size, stop)) for start, stop in ranges for at in range(start, stop, size)]
