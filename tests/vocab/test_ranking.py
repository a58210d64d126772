"""Which tokens are kept: against the definition written out plainly, and against every other choice."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from mtptools.errors import InputError, UsageError
from mtptools.vocab.counting import Counted
from mtptools.vocab.maps import Absolute, DraftVocabulary
from mtptools.vocab.ranking import auto, chosen, parse_size, rank


def counted(domain: str, train: list[int], held: list[int] | None = None) -> Counted:
    return Counted(domain, np.array(train, np.int64), np.array(train if held is None else held, np.int64), 1, 1)


def zipf(domain: str, seed: int, size: int = 4000, draws: int = 100_000) -> Counted:
    """Text whose n-th most frequent token has a share of 1/n, train and held out drawn alike."""
    rng = np.random.default_rng(seed)
    shares = 1 / (1 + rng.permutation(size))
    shares /= shares.sum()
    return Counted(domain, rng.multinomial(draws, shares), rng.multinomial(draws // 10, shares), 1, 1)


def test_kept_then_score_then_lower_ids() -> None:
    code = counted("code", [0, 6, 0, 0, 2, 2])  # of 10
    prose = counted("prose", [0, 0, 50, 0, 0, 50])  # of 100: a domain counts by its weight, not by its length
    ranking = rank([code, prose], {}, [3], 6)
    #                          3 kept; 5: .2 + .5; 1: .6; 2: .5; 4: .2; 0: never seen
    assert ranking.ids.tolist() == [3, 5, 1, 2, 4, 0]
    assert (ranking.kept, ranking.seen, ranking.size) == (1, 5, 6)
    heavy = rank([code, prose], {"code": 5}, [3], 6)
    assert heavy.ids.tolist() == [3, 1, 5, 4, 2, 0]


def test_ties_and_the_unseen_go_by_id() -> None:
    ranking = rank([counted("a", [0, 1, 2, 1, 0, 2, 1])], {}, [], 7)
    assert ranking.ids.tolist() == [2, 5, 1, 3, 6, 0, 4]


def test_weight_0_has_no_say() -> None:
    a, b = zipf("a", 1), zipf("b", 2)
    assert rank([a, b], {"b": 0}, [], 4000).ids.tolist() != rank([a, b], {}, [], 4000).ids.tolist()
    assert rank([a, b], {"b": 0}, [], 4000).ids.tolist() == rank([a], {}, [], 4000).ids.tolist()


def test_no_other_choice_covers_more() -> None:
    """Of all subsets of 4 tokens of 9, weighted: the ranking's first 4."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        some = [counted(name, rng.integers(0, 30, 9).tolist()) for name in "ab"]
        weights = {"a": float(rng.integers(1, 5))}

        def covered(ids: tuple[int, ...], some: list[Counted] = some, weights: dict[str, float] = weights) -> float:
            shares = (weights.get(one.domain, 1) * one.train[list(ids)].sum() / one.train.sum() for one in some)
            return float(sum(shares))

        best = max(covered(ids) for ids in combinations(range(9), 4))
        assert covered(tuple(chosen(rank(some, weights, [], 9), 4).ids.tolist())) == pytest.approx(best)


def test_a_reduced_head_can_choose_of_its_own_only() -> None:
    head = DraftVocabulary.of(Absolute(np.array([1, 2, 4])), 6)
    ranking = rank([counted("a", [9, 1, 0, 9, 5, 9])], {}, [0, 2], 6, head)
    assert ranking.ids.tolist() == [2, 4, 1]
    assert (ranking.kept, ranking.seen, ranking.size) == (1, 3, 6)
    draft = chosen(ranking, 2)
    assert draft.ids.tolist() == [2, 4]
    assert draft.within(head).ids.tolist() == [1, 2]
    with pytest.raises(UsageError, match="the head is reduced already and can draft 3"):
        chosen(ranking, 4)


def test_chosen_is_sorted_and_of_the_size_asked_for() -> None:
    ranking = rank([zipf("a", 1)], {}, [7, 3999], 4000)
    for n in (2, 3, 1000, 4000):
        draft = chosen(ranking, n)
        assert len(draft) == n
        assert draft == DraftVocabulary.of(draft.ids, 4000)
        assert {7, 3999} <= set(draft.ids.tolist())


@pytest.mark.parametrize(
    ("n", "message", "hint"),
    [
        (0, "0 tokens", "64k"),
        (-3, "-3 tokens", "64k"),
        (4001, "the vocabulary has 4,000", "4000"),
        (9, "10 are kept whatever", "10"),
    ],
)
def test_sizes_that_cannot_be(n: int, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        chosen(rank([zipf("a", 1)], {}, range(10), 4000), n)
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"prose": 1.0}, "prose, which no corpus"),
        ({"a": -1.0}, "a=-1"),
        ({"a": float("nan")}, "a=nan"),
        ({"a": float("inf")}, "a=inf"),
        ({"a": 0.0}, "every domain has weight 0"),
    ],
)
def test_weights_that_cannot_be(weights: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        rank([zipf("a", 1)], weights, [], 4000)
    if "prose" in weights:
        assert "the domains are a" in str(error.value.hint)


def least(some: list[Counted], ids: list[int], target: float, step: int) -> int:
    """`auto` by trying every size."""
    for n in range(step, len(ids) + step, step):
        if all(one.held[ids[:n]].sum() >= target * one.held.sum() for one in some):
            return min(n, len(ids))
    raise AssertionError("the whole vocabulary covers everything")


@pytest.mark.parametrize("target", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("step", [1, 64, 1024])
def test_auto_is_the_smallest(target: float, step: int) -> None:
    some = [zipf("a", 1), zipf("b", 2), zipf("c", 3)]
    ranking = rank(some, {"b": 3}, range(50), 4000)
    n = auto(some, ranking, {"b": 3}, target=target, step=step)
    assert n == least(some, ranking.ids.tolist(), target, step)


def test_auto_is_never_less_than_what_is_kept() -> None:
    some = [counted("a", [5, *[0] * 3999])]
    assert auto(some, rank(some, {}, range(100), 4000), {}, step=64) == 128
    assert auto(some, rank(some, {}, range(3990), 4000), {}, step=64) == 4000, "no multiple of 64 is left"


def test_auto_asks_no_domain_of_weight_0() -> None:
    seen, strange = counted("seen", [5, 5, 0, 0]), counted("strange", [0, 0, 1, 1], [0, 0, 0, 9])
    ranking = rank([seen, strange], {"strange": 0}, [], 4)
    assert auto([seen, strange], ranking, {"strange": 0}, step=1) == 2
    both = rank([seen, strange], {}, [], 4)
    assert auto([seen, strange], both, {}, step=1) == 4


def test_auto_out_of_reach_says_where() -> None:
    """Half of b's held-out text is tokens that occur nowhere: no ranking can tell which of the unseen come next."""
    a, b = counted("a", [9, 9, 0, 0, 0, 0, 0]), counted("b", [0, 9, 9, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 2])
    with pytest.raises(InputError, match=r"99\.5% .*every token that was seen \(3\) it is b 50\.00%") as error:
        auto([a, b], rank([a, b], {}, [], 7), {}, step=1)
    assert "more text of b" in str(error.value.hint)


def test_sizes_as_people_write_them() -> None:
    assert [parse_size(text) for text in ("64k", "32K", "32768", " 47149 ", "1")] == [65536, 32768, 32768, 47149, 1]
    assert parse_size("auto") is None
    for text in ("", "0", "0k", "-1", "64kb", "1.5k", "k", "١", "1e3", "64 k", "9" * 12):
        with pytest.raises(UsageError, match="no number of tokens"):
            parse_size(text)
