"""From an address to a verdict, with a server that says what our decoder says, but for the fault put in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.cli.running_runtime import ask_runtime, judge_runtime
from mtptools.cli.runtime_options import Asked
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.speculate import prefill
from mtptools.decoder.tokenizer import Tokenizer, load_tokenizer
from mtptools.errors import SystemFailure
from mtptools.runtimes.grades import DEFECT, NEAR_TIE
from mtptools.runtimes.report import RuntimeReport
from tests.conftest import FIXTURES
from tests.runtimes.fake_server import Fake, Teller, Top

TOKENS, K = 12, 3
DRAFTS = (15, 9)
Row = Callable[[list[int]], np.ndarray]


@pytest.fixture(scope="module")
def ckpt() -> Checkpoint:
    return open_checkpoint(FIXTURES / "qwen35" / "gguf" / "model-BF16.gguf")


@pytest.fixture(scope="module")
def model(ckpt: Checkpoint) -> Iterator[Model]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(ckpt, check=False)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer(ckpt: Checkpoint) -> Tokenizer:
    return load_tokenizer(ckpt, ckpt.hparams.vocab_size)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [tokenizer.encode(text) for text in ("The river was", "On the morning of")]


@pytest.fixture(scope="module")
def logits(model: Model) -> Row:
    """Our decoder's last row of logits after a text."""

    @cache
    def row(text: tuple[int, ...]) -> np.ndarray:
        with torch.inference_mode():
            states = prefill(model, list(text), model.trunk.new_cache())
            return model.trunk.logits(states.part(len(text) - 1, len(text)))[0].numpy().astype(np.float64)

    return lambda text: row(tuple(text))


def teller(
    logits: Row, noise: float = 0.0, seed: int = 0, change: Callable[[list[int], Top], Top] | None = None
) -> Teller:
    """Says what our decoder says, with noise of that deviation on every logit."""

    def tell(text: list[int]) -> Top:
        row = logits(text)[:-3].copy()  # the last ones end a text
        row += np.random.default_rng([seed, *text]).normal(0, noise, row.shape)
        row -= np.log(np.exp(row - row.max()).sum()) + row.max()
        best = np.argsort(-row)[:10]
        top = {int(token): float(row[token]) for token in best}
        return top if change is None else change(text, top)

    return tell


@pytest.fixture(scope="module")
def run(ckpt: Checkpoint, model: Model, tokenizer: Tokenizer, prompts: list[list[int]]) -> Callable[..., RuntimeReport]:
    def call(plain: Teller | None, mtp: Teller, *, alone: bool = False, **faults: Any) -> RuntimeReport:
        told: dict[str, Any] = {"vocabulary": ckpt.hparams.vocab_size, "decode": tokenizer.decode, **faults}
        with ExitStack() as stack:
            server = stack.enter_context(Fake(teller=mtp, drafts=DRAFTS, **told))
            other = None if plain is None else stack.enter_context(Fake(teller=plain, drafts=None, **told))
            asked = Asked(server.url, None if other is None else other.url, runtime_timeout=20)
            answers = ask_runtime(ckpt, None, asked, tokenizer, prompts, TOKENS, K)
            return judge_runtime(answers, None if alone else model, tokenizer, why="alone" if alone else None)

    return call


def smallest_margin(logits: Row, prompts: list[list[int]]) -> tuple[list[int], float]:
    """Text of the first prompt up to where our decoder is least sure, and how sure it is there."""
    text, found = list(prompts[0]), []
    tell = teller(logits)
    for _ in range(TOKENS):
        top = list(tell(text).items())
        found.append((top[0][1] - top[1][1], list(text)))
        text.append(top[0][0])
    margin, at = min(found[1:])
    return at, margin


def second(where: list[int]) -> Callable[[list[int], Top], Top]:
    """A change: at that text, and there alone, the second best token comes out."""

    def change(text: list[int], top: Top) -> Top:
        if text != where:
            return top
        (a, x), (b, y), *rest = top.items()
        return {b: x, a: y} | dict(rest)

    return change


def lowest(where: list[int]) -> Callable[[list[int], Top], Top]:
    """A change: at that text the tenth best token comes out, as after a rollback that lost a state."""
    return lambda text, top: top if text != where else dict(reversed(top.items()))


@pytest.mark.parametrize("dialect", ["llamacpp", "vllm", "sglang"])
def test_pass(dialect: str, run: Callable[..., RuntimeReport], logits: Row) -> None:
    report = run(teller(logits, 0.002), teller(logits, 0.002, seed=1), dialect=dialect)
    assert report.failures() == []
    assert (report.comparisons[0].found, report.comparisons[0].expected) == ("with MTP", "without MTP")
    noise = report.comparisons[1].noise
    assert noise is not None
    assert noise.measured
    assert noise.rms == pytest.approx(0.002 * 2**0.5, rel=0.2)
    assert report.ours is not None
    assert report.ours.steps


def test_a_wrong_token_after_a_rejected_draft(
    run: Callable[..., RuntimeReport], logits: Row, prompts: list[list[int]], tokenizer: Tokenizer
) -> None:
    where, _ = smallest_margin(logits, prompts)
    report = run(teller(logits, 0.002), teller(logits, 0.002, seed=1, change=lowest(where)))
    own = report.comparisons[0]
    assert [(one.grade, one.at) for one in own.divergences] == [(DEFECT, len(where) - len(prompts[0]))]
    assert own.divergences[0].before == tokenizer.decode(where)[-48:]
    ours = next(one for one in report.comparisons if (one.found, one.expected) == ("with MTP", "our decoder"))
    assert DEFECT in {one.grade for one in ours.divergences}
    assert any("differs from without MTP" in line for line in report.failures())


def test_a_near_tie_is_none(run: Callable[..., RuntimeReport], logits: Row, prompts: list[list[int]]) -> None:
    """The same two tokens turned over: with noise as large as the margin a tie, with a hundredth of it a defect."""
    where, margin = smallest_margin(logits, prompts)
    grades = {}
    for size in (0.5, 0.005):
        honest = teller(logits, 0.002 if size < 0.1 else margin * size)
        turned = teller(logits, 0.002 if size < 0.1 else margin * size, change=second(where))
        report = run(honest, turned)
        grades[size] = [one.grade for one in report.comparisons[0].divergences]
    assert grades == {0.5: [NEAR_TIE], 0.005: [DEFECT]}


def test_another_model(run: Callable[..., RuntimeReport], logits: Row) -> None:
    """Both servers agree with each other, and read the file otherwise: logits part by much more than rounding does."""
    report = run(teller(logits, 2.0), teller(logits, 2.0))
    assert not report.comparisons[0].divergences
    assert any("do not compute the same model" in line for line in report.failures())


def test_without_log_probabilities(run: Callable[..., RuntimeReport], logits: Row, prompts: list[list[int]]) -> None:
    def bare(answer: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in answer.items() if key != "completion_probabilities"}

    report = run(teller(logits), teller(logits), change=bare)
    assert report.failures() == []
    assert "noise is estimated" in report.notes[0]
    where, _ = smallest_margin(logits, prompts)
    wrong = run(teller(logits), teller(logits, change=lowest(where)), change=bare)
    assert any("differs from without MTP" in line for line in wrong.failures())


def test_one_address(run: Callable[..., RuntimeReport], logits: Row) -> None:
    report = run(None, teller(logits, 0.002))
    assert report.failures() == []
    assert [(one.found, one.expected) for one in report.comparisons] == [("with MTP", "our decoder")]
    assert "one address" in report.notes[0]


def test_without_our_decoder(run: Callable[..., RuntimeReport], logits: Row, prompts: list[list[int]]) -> None:
    good = run(teller(logits, 0.002), teller(logits, 0.002, seed=1), alone=True)
    assert good.failures() == []
    assert good.notes == ["not compared with our decoder: alone"]
    where, _ = smallest_margin(logits, prompts)
    bad = run(teller(logits, 0.002), teller(logits, 0.002, change=lowest(where)), alone=True)
    assert bad.failures()


def test_a_key_that_is_not_set(
    ckpt: Checkpoint, tokenizer: Tokenizer, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    asked = Asked("http://127.0.0.1:9", api_key_env="NO_SUCH_KEY")
    with pytest.raises(SystemFailure, match="NO_SUCH_KEY is not set"):
        ask_runtime(ckpt, None, asked, tokenizer, prompts, TOKENS, K)
