from __future__ import annotations

from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtptools.hub.ranges import absent, add, coalesced, covered, joined, parts

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))), max_size=8
)


# A busy machine is no finding.
QUICK = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def bytes_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {at for start, stop in ranges for at in range(start, stop)}


@QUICK
@given(RANGES)
def test_joined(ranges: list[tuple[int, int]]) -> None:
    out = joined(ranges)
    assert bytes_of(out) == bytes_of(ranges)
    assert covered(out) == len(bytes_of(out))
    assert all(a[1] < b[0] for a, b in pairwise(out))


@QUICK
@given(RANGES)
def test_add(ranges: list[tuple[int, int]]) -> None:
    have: list[tuple[int, int]] = []
    for start, stop in ranges:
        if start < stop:
            add(have, start, stop)
    assert have == joined(ranges)


@QUICK
@given(RANGES, st.integers(0, 60), st.integers(0, 60))
def test_absent(ranges: list[tuple[int, int]], start: int, stop: int) -> None:
    assert bytes_of(absent(joined(ranges), start, stop)) == set(range(start, stop)) - bytes_of(ranges)


@QUICK
@given(RANGES, st.integers(0, 10), st.integers(0, 20))
def test_coalesced(ranges: list[tuple[int, int]], gap: int, extra: int) -> None:
    wanted = joined(ranges)
    out, spent = coalesced(wanted, gap, extra)
    assert bytes_of(out) >= bytes_of(wanted)
    assert covered(out) - covered(wanted) == spent <= extra


@QUICK
@given(RANGES, st.integers(1, 9))
def test_parts(ranges: list[tuple[int, int]], size: int) -> None:
    out = parts(joined(ranges), size)
    assert joined(out) == joined(ranges)
    assert all(0 < stop - start <= size for start, stop in out)


def test_the_smallest_gaps_are_closed_first() -> None:
    assert coalesced([(0, 10), (15, 20), (22, 30)], gap=5, extra=6) == ([(0, 10), (15, 30)], 2)
