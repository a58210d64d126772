"""The three APIs: what is read of a right answer, and that every wrong one is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mtptools.errors import SystemFailure
from mtptools.runtimes.client import Client
from mtptools.runtimes.connect import connect
from mtptools.runtimes.generation import Drafts, Engine
from tests.runtimes.fake_server import VOCABULARY, Fake, cycle, decode

PROMPT = [5, 6, 7]
DIALECTS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang"}


def engine(fake: Fake, model: str | None = None) -> Engine:
    return connect(Client(fake.url, 5), vocabulary=VOCABULARY, decode=decode, k=3, model=model)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_right_answer(dialect: str) -> None:
    with Fake(dialect) as fake:
        found = engine(fake)
        made = found.generate(PROMPT, 6)
    assert (found.name, found.how) == (DIALECTS[dialect], fake.url)
    assert found.version in ("b9999-abc", "0.33.0", "0.5.23")
    text = list(PROMPT)
    for token, row in zip(made.tokens, made.top, strict=True):
        assert row == cycle(text)
        assert token == max(row, key=lambda one: row[one])
        text.append(token)
    assert made.drafts == Drafts(12, 8, 4)
    assert made.seconds > 0
    assert made.banned == ({96} if dialect == "llamacpp" else set())
    asked = next(body for body in fake.asked)
    assert PROMPT in asked.values()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_without_drafts(dialect: str) -> None:
    with Fake(dialect, drafts=None) as fake:
        made = engine(fake).generate(PROMPT, 6)
    assert made.drafts is None or made.drafts == Drafts(0, 0)


def test_drafts_of_others_are_not_ours() -> None:
    """A busy vLLM counts for everybody: what was drafted for us alone is not known then."""
    with Fake("vllm") as fake:
        fake.strangers = 3
        assert engine(fake).generate(PROMPT, 6).drafts is None
    with Fake("vllm", metrics=False) as fake:
        assert engine(fake).generate(PROMPT, 6).drafts is None


def test_llama_counts_by_itself_without_metrics() -> None:
    with Fake(metrics=False) as fake:
        assert engine(fake).generate(PROMPT, 6).drafts == Drafts(12, 8)


def _put(*path: Any, value: Any) -> Any:
    """A change of one place of an answer."""

    def change(answer: dict[str, Any]) -> Any:
        at: Any = answer
        for key in path[:-1]:
            at = at[key]
        if value is None:
            at.pop(path[-1], None)
        else:
            at[path[-1]] = value
        return answer

    return change


WRONG = [
    ("llamacpp", _put("tokens", value=None), "tells no token ids"),
    ("llamacpp", _put("tokens", value=[]), "tells no token ids"),
    ("llamacpp", _put("tokens", value=[1, "two"]), "'two' in place of a token id"),
    ("llamacpp", _put("tokens", value=[1, 97]), "token id 97: the checkpoint has 0 to 96"),
    ("llamacpp", _put("prompt", value="another text"), "another tokenizer"),
    ("llamacpp", _put("tokens_evaluated", value=2), "read 2 tokens of a prompt of 3"),
    ("llamacpp", _put("timings", "draft_n", value=-1), "in place of a count"),
    ("llamacpp", _put("timings", "draft_n", value="many"), "in place of a count"),
    ("llamacpp", _put("timings", "draft_n", value=10**30), "in place of a count"),
    ("llamacpp", _put("timings", "draft_n_accepted", value=13), "13 accepted drafts of 12"),
    (
        "llamacpp",
        _put("generation_settings", "logit_bias", value=[{"bias": None, "token": n} for n in range(70)]),
        "70 tokens that cannot come out",
    ),
    ("llamacpp", _put("completion_probabilities", value=["x"]), "probabilities that are no objects"),
    ("llamacpp", lambda _: [1, 2], "an answer that is no object"),
    ("vllm", lambda _: {"choices": []}, "no choices"),
    ("vllm", lambda _: {"error": "x"}, "no choices"),
    ("vllm", _put("choices", 0, "token_ids", value=[500]), "token id 500"),
    ("vllm", _put("choices", 0, "prompt_token_ids", value=[1]), "read another prompt"),
    ("vllm", _put("usage", "prompt_tokens", value=9), "read another prompt"),
    ("sglang", lambda _: {"text": "x"}, "no meta_info"),
    ("sglang", _put("output_ids", value=[True]), "True in place of a token id"),
    ("sglang", _put("meta_info", "prompt_tokens", value=9), "read 9 tokens of a prompt of 3"),
    ("sglang", _put("meta_info", "spec_num_correct_drafts", value=13), "13 accepted drafts of 12"),
    ("sglang", _put("meta_info", "spec_verify_ct", value=-3), "in place of a count"),
]


@pytest.mark.parametrize(("dialect", "change", "what"), WRONG)
def test_a_wrong_answer(dialect: str, change: Any, what: str) -> None:
    with Fake(dialect, change=change) as fake, pytest.raises(SystemFailure) as failed:
        engine(fake).generate(PROMPT, 6)
    assert what in str(failed.value)
    assert failed.value.hint


def test_tokens_as_texts_alone_are_refused() -> None:
    """A server that knows no ids, as OpenAI's own: texts could be cut into other tokens."""

    def change(answer: dict[str, Any]) -> Any:
        choice = answer["choices"][0]
        del choice["token_ids"]
        choice["logprobs"]["tokens"] = [" the"] * 6
        return answer

    with Fake("vllm", change=change) as fake, pytest.raises(SystemFailure, match="tells no token ids"):
        engine(fake).generate(PROMPT, 6)


def test_ids_beside_log_probabilities_are_enough() -> None:
    with Fake("vllm", change=_put("choices", 0, "token_ids", value=None)) as fake:
        assert len(engine(fake).generate(PROMPT, 6).tokens) == 6


@pytest.mark.parametrize(
    ("dialect", "change"),
    [
        ("llamacpp", _put("completion_probabilities", value=None)),
        ("vllm", _put("choices", 0, "logprobs", value=None)),
        ("sglang", _put("meta_info", "output_top_logprobs", value=None)),
    ],
)
def test_no_log_probabilities_are_no_error(dialect: str, change: Any) -> None:
    with Fake(dialect, change=change) as fake:
        made = engine(fake).generate(PROMPT, 6)
    assert made.top == ({},) * 6


def _places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of an answer, of long lists the first."""
    if at:
        yield at
    children = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:2] if isinstance(tree, list) else ()
    for key, child in children:
        yield from _places(child, (*at, key))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_nonsense_anywhere(dialect: str) -> None:
    """Any value of an answer replaced by any other kind of value: an answer, or an error that we raise."""
    answers: list[dict[str, Any]] = []

    def keep(answer: dict[str, Any]) -> Any:
        answers.append(answer)
        return answer

    with Fake(dialect, change=keep) as fake:
        found = engine(fake)
        found.generate(PROMPT, 2)
        refused = 0
        for place in list(_places(answers[0])):
            for value in (5, -1.5, "x", [], [[]], [{}], float("nan"), 10**400):
                fake.change = _put(*place, value=value)
                try:
                    made = found.generate(PROMPT, 2)
                except SystemFailure:
                    refused += 1
                else:
                    assert all(isinstance(token, int) for token in made.tokens)
                    assert len(made.top) == len(made.tokens)
                    assert made.seconds < 60
                    assert all(0 <= token < VOCABULARY for row in made.top for token in row)
                    assert all(abs(value) < 10_000 for row in made.top for value in row.values())
    assert refused > 10


def test_what_is_no_log_probability_tells_nothing() -> None:
    """Ids of no token, and what engines send for minus infinity: noise would be measured on them."""

    def change(answer: dict[str, Any]) -> Any:
        first = answer["completion_probabilities"][0]["top_logprobs"]
        for row, (token, value) in zip(
            first, [(-1, -1.0), (97, -1.0), (3, -9999.0), (4, -3.4e38), (5, 2.0)], strict=False
        ):
            row |= {"id": token, "logprob": value}
        answer["generation_settings"]["logit_bias"] += [{"bias": None, "token": token} for token in (-1, 97, 10**30)]
        return answer

    with Fake(change=change) as fake:
        made = engine(fake).generate(PROMPT, 2)
    assert list(made.top[0]) == list(cycle(PROMPT))[5:]
    assert made.banned == {96}


def test_other_models() -> None:
    with Fake(names=("a", "b")) as fake:
        with pytest.raises(SystemFailure, match="it serves a, b"):
            engine(fake)
        with pytest.raises(SystemFailure, match="it does not serve c but a, b"):
            engine(fake, "c")
        assert engine(fake, "b").name == "llama.cpp"
    with Fake(vocabulary=32) as fake, pytest.raises(SystemFailure, match="a model of 32 tokens, the checkpoint has 97"):
        engine(fake)
    page = {"/v1/models": (200, "application/json", b'{"data": "none"}')}
    with Fake(page=page) as fake, pytest.raises(SystemFailure, match="lists no model"):
        engine(fake)
