"""Facts that reports show: counts per prompt and category, margins, tokens around a difference."""

from __future__ import annotations

import pytest

from mtptools.decoder.by_prompt import PromptCounts, by_category
from mtptools.decoder.margins import EDGES, Margins
from mtptools.decoder.parity import compare
from mtptools.decoder.trace import DraftCounts, Trace


def counts(*steps: tuple[int, int]) -> DraftCounts:
    out = DraftCounts()
    for drafted, accepted in steps:
        out.add(drafted, accepted)
    return out


def test_by_category() -> None:
    """Each category has its own prompts' counts; together they are those of all."""
    found = by_category(["code", "prose", "code"], {1: [counts((1, 1)), counts((1, 0)), counts((1, 0))]})
    assert list(found) == ["code", "prose"]
    assert (found["code"][0].drafted, found["code"][0].accepted, found["code"][0].emitted) == ((2,), (1,), 3)
    assert found["prose"][0].rate == 0
    assert by_category(["", ""], {1: [counts((1, 1)), counts((1, 1))]}) == {}


def test_prompt_counts() -> None:
    trace = Trace([1, 2], 4, tokens=[3, 4, 5, 6], drafts=counts((2, 1), (1, 0)), decode_seconds=0.5)
    one = PromptCounts(2, "code")
    one.add(0, Trace([1, 2], 4, tokens=[3, 4, 5, 6], decode_seconds=1.0))
    one.add(2, trace)
    said = one.to_json()
    assert [(arm["k"], arm["seconds"]) for arm in said["arms"]] == [(0, [1.0]), (2, [0.5])]
    assert (said["arms"][1]["drafted"], said["arms"][1]["accepted"]) == ((2, 1), (1, 0))
    assert (said["emitted_tokens"], said["category"]) == (4, "code")


def test_margins() -> None:
    traces = [Trace([1], 3, margins=[0.0, 0.05, 20.0]), Trace([1], 1, margins=[0.2])]
    found = Margins.of(traces)
    assert found is not None
    assert (found.counted, found.ties, sum(found.counts)) == (4, 1, 4)
    assert [at for at, count in zip(EDGES, found.counts, strict=True) if count] == [0.0, 0.03, 0.1, 10.0]
    assert found.to_json()["quantiles"]["0.5"] == pytest.approx(0.125)
    assert Margins.of([]) is None


def test_context_of_a_difference() -> None:
    plain = Trace([1, 2], 3, tokens=[3, 4, 5], digests=["a", "b", "c"], margins=[1.0, 0.5, 1.0])
    other = Trace([1, 2], 3, tokens=[3, 9, 5], digests=["a", "x", "c"], margins=[1.0, 0.5, 1.0])
    found = compare(plain, other).context
    assert found is not None
    assert (found.before, found.plain, found.other) == ((1, 2, 3), (4, 5), (9, 5))
    assert found.read(lambda ids: " ".join(map(str, ids))).text == ("1 2 3", "4 5", "9 5")
    assert compare(plain, plain).context is None
