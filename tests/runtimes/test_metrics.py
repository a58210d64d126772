"""Counters of real pages: as vLLM 0.33 and llama.cpp build 11549 print them."""

from __future__ import annotations

from mtptools.runtimes.generation import Drafts
from mtptools.runtimes.metrics import counters, difference

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {drafts}
vllm:spec_decode_num_drafts_created{{engine="0",model_name="m"}} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} {drafted}
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="0"}} {first}
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",model_name="m",position="1"}} {second}
vllm:generation_tokens_total{{engine="0",model_name="m"}} {emitted}
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="0.3",model_name="m"}} 0.0
"""
LLAMA = """# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 12
llamacpp:predicted_tokens_seconds 553.543
llamacpp:spec_decode_num_draft_tokens_total 16
llamacpp:spec_decode_num_accepted_tokens_total 5
llamacpp:spec_decode_num_drafts_total 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 0
"""


def page(**values: float) -> str:
    return VLLM.format(**values)


def test_difference() -> None:
    before = page(drafts=10.0, drafted=20.0, accepted=12.0, first=9.0, second=3.0, emitted=100.0)
    after = page(drafts=14.0, drafted=28.0, accepted=18.0, first=13.0, second=5.0, emitted=111.0)
    assert difference(counters(before), counters(after), 11) == Drafts(8, 6, 4, (4, 2))
    assert difference(counters(before), counters(after), 10) is None


def test_llama() -> None:
    assert difference({}, counters(LLAMA), 12) == Drafts(16, 5, 6, (4, 1, 0))


def test_two_engines_are_added() -> None:
    two = page(drafts=1.0, drafted=2.0, accepted=1.0, first=1.0, second=0.0, emitted=3.0)
    both = counters(two + two.replace('engine="0"', 'engine="1"'))
    assert difference({}, both, 6) == Drafts(4, 2, 2, (2, 0))


def test_counts_that_contradict_each_other() -> None:
    """A server that was started again in between, and one that accepts more than it drafted."""
    names = ("drafts", "drafted", "accepted", "first", "second", "emitted")

    def counted(*values: float) -> str:
        return page(**dict(zip(names, values, strict=True)))

    before = counters(counted(10, 20, 12, 9, 3, 100))
    assert difference(before, counters(counted(2, 4, 2, 2, 0, 6)), 6) is None
    assert difference({}, counters(counted(2, 4, 5, 2, 0, 6)), 6) is None
    assert difference({}, counters(counted(2, 4, 4, 3, 1, 6)), 6) is None
    for value in ("NaN", "+Inf", "1e400", "1.e.5", "-3"):
        page_ = counted(2, 4, 3, 2, 1, 6).replace("}} 4\n".replace("}}", "}"), f"}} {value}\n")
        assert value in page_
        assert difference({}, counters(page_), 6) is None


def test_nothing_counted() -> None:
    assert difference(counters("up 1\n"), counters("up 1\nnonsense{ 5\n<html>"), 5) is None
