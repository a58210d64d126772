"""Coverage: against a text and a set, token by token."""

from __future__ import annotations

import numpy as np
import pytest

from mtptools.errors import UsageError
from mtptools.vocab.counting import Counted
from mtptools.vocab.coverage import Coverage, Covered, coverage, curve, share, weighted
from mtptools.vocab.maps import Absolute, DraftVocabulary


def texts(seed: int, size: int = 300, n: int = 2000) -> tuple[list[int], Counted]:
    """A held-out text as ids, and its counts; the train part is another one."""
    rng = np.random.default_rng(seed)
    train, held = (np.minimum(rng.geometric(0.03, n) - 1, size - 1) for _ in range(2))
    counts = [np.bincount(text, minlength=size).astype(np.int64) for text in (train, held)]
    return held.tolist(), Counted(f"domain {seed}", counts[0], counts[1], 2, 9)


def draft(ids: list[int], size: int = 300) -> DraftVocabulary:
    return DraftVocabulary.of(Absolute(np.array(ids, np.int64)), size)


def test_share_is_that_of_the_text() -> None:
    text, counts = texts(1)
    for ids in ([0], [0, 5, 299], list(range(0, 300, 3)), list(range(300))):
        assert share(draft(ids), counts.held) == sum(token in set(ids) for token in text) / len(text)
    assert share(draft([1]), np.zeros(300, np.int64)) == 1.0, "of no text nothing is lost"


def test_curve_is_the_share_at_every_size() -> None:
    _, counts = texts(2)
    ranked = np.random.default_rng(0).permutation(300)
    values = curve(Absolute(ranked), counts.held)
    assert values[0] == 0
    assert values[-1] == 1
    for n in (1, 7, 150, 299):
        assert values[n] == share(draft(sorted(ranked[:n].tolist())), counts.held)


def test_coverage_holds_train_and_held_apart() -> None:
    (_, one), (_, two) = texts(1), texts(2)
    some = draft(list(range(20)))
    found = coverage(some, [one, two], {"domain 2": 3})
    assert (found.size, found.of) == (20, 300)
    assert [row.held for row in found.domains] == [share(some, one.held), share(some, two.held)]
    assert [row.train for row in found.domains] == [share(some, one.train), share(some, two.train)]
    assert [row.tokens for row in found.domains] == [2000, 2000]
    assert found.domains[0].held != found.domains[0].train
    assert found.overall == pytest.approx((share(some, one.held) + 3 * share(some, two.held)) / 4)


def test_worst_and_overall_leave_out_weight_0() -> None:
    rows = (Covered("a", 1, 0.9, 1, 10), Covered("b", 3, 0.8, 1, 10), Covered("c", 0, 0.1, 1, 10))
    found = Coverage(5, 10, rows)
    assert found.worst.domain == "b"
    assert found.overall == pytest.approx((0.9 + 3 * 0.8) / 4)


def test_all_text_of_weight_0_is_held_out() -> None:
    (_, one), (_, two) = texts(1), texts(2)
    some = draft(list(range(20)))
    found = coverage(some, [one, two], {"domain 2": 0}).domains
    assert (found[0].tokens, found[1].tokens) == (2000, 4000)
    assert found[0].held == share(some, one.held)
    assert found[1].held == pytest.approx((share(some, two.held) + share(some, two.train)) / 2)


def test_weights() -> None:
    some = [texts(1)[1], texts(2)[1]]
    assert weighted(some, {}) == {"domain 1": 1.0, "domain 2": 1.0}
    assert weighted(some, {"domain 2": 0}) == {"domain 1": 1.0, "domain 2": 0.0}
    with pytest.raises(UsageError, match="domain 3"):
        weighted(some, {"domain 3": 1})


def test_a_row_of_tokens_lies_between_the_bounds() -> None:
    """What the module says of k tokens in a row, on a text whose rare tokens come together."""
    rng = np.random.default_rng(5)
    state, text = 0, []
    for _ in range(5000):
        state = state if rng.random() < 0.8 else int(rng.random() < 0.1)
        text.append(state)
    missing = np.array(text, bool)
    for k in (2, 3, 8):
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate((missing, missing[: k - 1])), k)
        whole, c = float((~windows.any(axis=1)).mean()), float((~missing).mean())
        assert 1 - k * (1 - c) <= whole <= c
        assert whole > c**k, "they come together"
