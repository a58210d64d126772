"""Draft vocabularies: absolute ids and offsets, by the arithmetic that EAGLE-3's users do."""

from __future__ import annotations

import numpy as np
import pytest

from mtptools.errors import InputError
from mtptools.vocab.maps import Absolute, DraftVocabulary, Offsets, absolute, problems


def ids(*values: int) -> Absolute:
    return Absolute(np.array(values, dtype=np.int64))


def test_offsets_and_mask() -> None:
    """target = row + d2t[row], and t2d has a True for each: as vLLM's EAGLE-3 heads read them."""
    made = DraftVocabulary.of(ids(0, 2, 3, 7), 9)
    assert made.offsets.tolist() == [0, 1, 1, 4]
    assert [row + off for row, off in enumerate(made.offsets.tolist())] == [0, 2, 3, 7]
    assert np.flatnonzero(made.mask).tolist() == [0, 2, 3, 7]
    assert (len(made.mask), made.mask.dtype) == (9, np.bool_)
    assert DraftVocabulary.of(absolute(made.offsets), 9) == made
    assert absolute(Offsets(np.zeros(5, np.int64))).tolist() == [0, 1, 2, 3, 4]


def test_any_of_them_comes_back() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 17, 1000):
        for n in {1, size // 2 or 1, size}:
            chosen = np.sort(rng.choice(size, n, replace=False)).astype(np.int64)
            made = DraftVocabulary.of(Absolute(chosen), size)
            assert DraftVocabulary.of(absolute(made.offsets), size) == made
            assert np.array_equal(np.flatnonzero(made.mask), chosen)
            assert [i for start, stop in made.runs() for i in range(start, stop)] == chosen.tolist()


@pytest.mark.parametrize(
    ("values", "size", "said"),
    [
        ((0, 1, 9), 9, "out of range"),
        ((-1, 1), 9, "out of range"),
        ((0, 3, 2), 9, "3 stands before 2"),
        ((0, 3, 3), 9, "more than once"),
        ((), 9, "no list of ids"),
    ],
)
def test_what_is_wrong(values: tuple[int, ...], size: int, said: str) -> None:
    assert any(said in f"{what} {evidence}" for what, evidence in problems(ids(*values), size))
    with pytest.raises(InputError, match=said):
        DraftVocabulary.of(ids(*values), size)


def test_everything_at_once() -> None:
    wrong = problems(ids(5, 5, -2, 90), 10)
    assert len(wrong) == 3


def test_within_a_reduced_one() -> None:
    wide = DraftVocabulary.of(ids(1, 4, 6, 8), 9)
    rows = DraftVocabulary.of(ids(4, 8), 9).within(wide)
    assert (rows.ids.tolist(), rows.size) == ([1, 3], 4)
    with pytest.raises(InputError, match="2 of these 3 tokens any more, 5 the first"):
        DraftVocabulary.of(ids(4, 5, 7), 9).within(wide)
