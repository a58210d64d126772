"""From drafts on a text to acceptance: cases worked out by hand, and loops that go slot by slot."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.rates import Rates, Tokens, rates, walked
from mtptools.decoder.stream.report import StreamReport, TrunkFacts
from mtptools.decoder.trace import DraftCounts
from mtptools.errors import UsageError


def ids(*tokens: int) -> Tokens:
    return np.array(tokens, dtype=np.int64)


# A text of six tokens; the trunk would write it so, and 16 after it. drafts[s][p] is of token p + 2 + s.
TEXT = ids(10, 11, 12, 13, 14, 15)
CHOSEN = ids(11, 12, 13, 14, 15, 16)
DRAFTS = [ids(12, 13, 14, 15, 16), ids(13, 14, 15, 16), ids(14, 15, 16)]


def test_all_right() -> None:
    """Every slot has a first draft, the last one of a token after the text; a second has one slot less."""
    assert rates(TEXT, 1, CHOSEN, DRAFTS) == ([5, 4, 3], [5, 4, 3])


def test_a_draft_after_a_wrong_one_is_not_tried() -> None:
    wrong = [ids(12, 0, 14, 15, 16), ids(13, 14, 0, 16), ids(14, 15, 16)]
    assert rates(TEXT, 1, CHOSEN, wrong) == ([5, 3, 1], [4, 2, 1])


def test_where_the_text_goes_on_otherwise_the_slot_ends() -> None:
    """The trunk wants 99 for the third token: a draft of 99 is right, and of what follows nothing is known."""
    chosen = CHOSEN.copy()
    chosen[2] = 99
    drafts = [DRAFTS[0].copy(), *DRAFTS[1:]]
    drafts[0][1] = 99
    # second drafts: slots 0, 2, 3 (not 1: the text did not take 99); slot 0's is of the third token: 13 is not 99
    assert rates(TEXT, 1, chosen, drafts) == ([5, 3, 1], [5, 2, 1])
    drafts[0][1] = 13  # the text's token is not the trunk's
    assert rates(TEXT, 1, chosen, drafts) == ([5, 3, 1], [4, 2, 1])


def test_slots_of_the_prompt_do_not_count() -> None:
    """The prompt's pass gives the token at `start`: the first that is drafted is the one after it."""
    assert rates(TEXT, 3, CHOSEN, DRAFTS) == ([3, 2, 1], [3, 2, 1])
    assert rates(TEXT, 5, CHOSEN, DRAFTS) == ([1, 0, 0], [1, 0, 0])
    assert rates(TEXT, 6, CHOSEN, DRAFTS) == ([0, 0, 0], [0, 0, 0])
    assert rates(TEXT, 0, CHOSEN, DRAFTS) == rates(TEXT, 1, CHOSEN, DRAFTS)


def test_two_tokens() -> None:
    text, chosen = ids(1, 2), ids(2, 3)
    assert rates(text, 1, chosen, [ids(3), ids(), ids()]) == ([1, 0, 0], [1, 0, 0])
    counts = walked(text, 1, chosen, [ids(3), ids()], 2)
    assert counts is None or counts.steps == 0
    assert walked(text, 1, ids(9, 3), [ids(3), ids()], 2) is None, "the model would not have written it"


def test_the_estimate_is_a_product() -> None:
    one = Rates((10, 8, 4), (8, 4, 1))
    assert one.conditional == (0.8, 0.5, 0.25)
    assert one.per_position == pytest.approx((0.8, 0.4, 0.1))
    assert one.rate(1) == pytest.approx(0.8)
    assert one.rate(3) == pytest.approx(1.3 / 3)
    assert one.mean_length(2) == pytest.approx(2.2)
    assert one.error[0] == pytest.approx((0.8 * 0.2 / 10) ** 0.5)
    told = one.to_json()
    assert told["rate"] == pytest.approx([0.8, 0.6, 1.3 / 3])
    assert told["mean_length"] == pytest.approx([1.8, 2.2, 2.3])


def test_nothing_tried() -> None:
    one = Rates((4, 0), (4, 0))
    assert one.conditional == one.per_position == (1, None)
    assert one.error[0] is not None
    assert 0 < one.error[0] < 0.2, "four of four is not certain"
    told = one.to_json()
    assert [told[name][1] for name in ("conditional", "error", "per_position", "rate", "mean_length")] == [None] * 5
    assert Rates((4, 0), (0, 0)).mean_length(1) == 1
    assert Rates((4, 0), (0, 0)).mean_length(2) is None
    assert json.loads(json.dumps(told))["tried"] == [4, 0]


def test_walk_by_hand() -> None:
    """k = 2: the first step drafts 12 and 13, both right, 14 comes too; then 15 is the last and nothing is drafted."""
    counts = walked(TEXT, 1, CHOSEN, DRAFTS, 2)
    assert counts == DraftCounts([1, 1], [1, 1], 2, 4)
    assert walked(TEXT, 1, CHOSEN, DRAFTS, 1) == DraftCounts([2], [2], 2, 4)


def slot_by_slot(text: Tokens, start: int, chosen: Tokens, drafts: list[Tokens], k: int) -> tuple[list[int], list[int]]:
    tried, right = [0] * k, [0] * k
    for slot in range(len(text) - 1):
        if slot + 2 <= start:
            continue
        for step in range(k):
            token = slot + 2 + step
            if token > len(text):
                break
            tried[step] += 1
            if drafts[step][slot] != chosen[token - 1]:
                break
            right[step] += 1
            if token == len(text) or text[token] != chosen[token - 1]:
                break
    return tried, right


def loop(text: Tokens, start: int, drafts: list[Tokens], k: int) -> DraftCounts:
    """Emit a token; draft; keep what the text confirms, and one more."""
    counts, out = DraftCounts(), list(text[: start + 1])
    while len(out) < len(text):
        mine = [drafts[step][len(out) - 2] for step in range(min(k, len(text) - len(out) - 1))]
        kept = 0
        while kept < len(mine) and mine[kept] == text[len(out) + kept]:
            kept += 1
        counts.add(len(mine), kept)
        out += list(text[len(out) : len(out) + kept + 1])
    return counts


@pytest.mark.parametrize("seed", range(40))
def test_against_loops(seed: int) -> None:
    """Random texts over few tokens, so that drafts are often right and often not."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(2, 40)), int(rng.integers(1, 6))
    start = int(rng.integers(1, n + 1))
    text = rng.integers(0, 3, n)
    chosen = np.append(text[1:], 1)
    drafts = [np.where(rng.random(max(n - 1 - s, 0)) < 0.7, chosen[s + 1 :][: max(n - 1 - s, 0)], 7) for s in range(k)]
    assert walked(text, start, chosen, drafts, k) == loop(text, start, drafts, k)
    assert rates(text, start, chosen, drafts) == slot_by_slot(text, start, chosen, drafts, k)
    other = np.where(rng.random(n) < 0.3, rng.integers(0, 3, n), chosen)  # not the model's own any more
    assert rates(text, start, other, drafts) == slot_by_slot(text, start, other, drafts, k)


def test_passages_are_cut() -> None:
    long, rest = Passage(tuple(range(10)), 3), Passage(tuple(range(100, 104)))
    found = Passages.cut([long, rest], 12, 4)
    assert [one.ids for one in found.all] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9), (100, 101)]
    assert [one.start for one in found.all] == [3, 1, 1, 1]
    assert found.n_rows == 12
    assert found.ids[-2:] == [100, 101]
    assert [(first, stop) for _, first, stop in found.bounds()] == [(0, 4), (4, 8), (8, 10), (10, 12)]


def test_a_prompt_over_several_passages() -> None:
    found = Passages.cut([Passage(tuple(range(10)), 6)], 100, 4)
    assert [one.start for one in found.all] == [4, 2, 1]


def test_one_token_left_is_no_passage() -> None:
    assert [len(one.ids) for one in Passages.cut([Passage(tuple(range(9)))], 100, 4).all] == [4, 4]
    assert [len(one.ids) for one in Passages.cut([Passage(tuple(range(9)))], 5, 4).all] == [4]


@pytest.mark.parametrize("texts", [[], [Passage((1,))], [Passage((1, 2), 2)], [Passage(())]])
def test_nothing_to_predict(texts: list[Passage]) -> None:
    with pytest.raises(UsageError, match="no token to predict") as caught:
        Passages.cut(texts, 100, 100)
    assert caught.value.hint == "a longer --text"


def test_a_prompt_that_takes_all_positions() -> None:
    with pytest.raises(UsageError, match="no token to predict") as caught:
        Passages.cut([Passage(tuple(range(9)), 6)], 5, 100)
    assert str(caught.value.hint).startswith("more --positions (5)")


@pytest.mark.parametrize(("right", "of", "warned"), [(0, 99, False), (0, 100, True), (1, 100, False), (9, 1000, True)])
def test_a_text_that_the_trunk_makes_nothing_of(right: int, of: int, warned: bool) -> None:
    agreed = np.arange(of) < right
    facts = TrunkFacts.of(agreed, np.full(of, -7.0), np.ones(of, dtype=np.float32))
    report = StreamReport(1, of, "", facts, None)
    assert (len(report.warnings), len(report.to_json()["warnings"])) == (warned, warned)


def test_beginning() -> None:
    found = Passages((Passage((1, 2, 3), 2), Passage((4, 5, 6), 3), Passage((7, 8))))
    assert found.beginning(5).all == (Passage((1, 2, 3), 2), Passage((4, 5), 2))
    assert found.beginning(4).all == (Passage((1, 2, 3), 2),), "one token has nothing to predict"
    assert found.beginning(100) == found


def test_digest_knows_ids_and_starts() -> None:
    one = Passages((Passage((1, 2, 3)), Passage((4, 5))))
    others = [
        Passages((Passage((1, 2, 3), 2), Passage((4, 5)))),
        Passages((Passage((1, 2)), Passage((3, 4, 5)))),
        Passages((Passage((1, 2, 4)), Passage((4, 5)))),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 4
    assert one.digest() == Passages(one.all).digest()
