"""The best tokens of a part of the vocabulary at a time are those of the whole, by numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mtptools.decoder import best as module
from mtptools.decoder.best import Best, best
from mtptools.decoder.ops import Arithmetic
from tests.decoder.stream.given import CPU

WIDTH = 32
ARITHMETIC = (Arithmetic.on(CPU), Arithmetic(CPU, 256, 256))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 tokens and 16 rows at a time."""
    monkeypatch.setattr(module, "ROWS", 16)
    monkeypatch.setattr(module, "HEAD_CHUNK", 64)
    monkeypatch.setattr(module, "BLOCK", 64 * WIDTH)


def given(rows: int, vocab: int, seed: int = 0, *, whole: bool = False, scale: float = 1.0) -> tuple[torch.Tensor, ...]:
    """States and an output matrix; `whole` numbers make products that are exact, and ties."""
    rng = np.random.default_rng(seed)
    x, w = (rng.integers(-1, 2, (n, WIDTH)) if whole else rng.standard_normal((n, WIDTH)) for n in (rows, vocab))
    return torch.tensor(x * scale, dtype=torch.float32), torch.tensor(w, dtype=torch.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    peak = logits.max(1, keepdims=True)
    return logits - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))


def check(found: Best, logits: np.ndarray) -> None:
    rows = np.arange(len(logits))
    first = logits.argmax(1)
    rest = logits.copy()
    rest[rows, first] = -np.inf
    assert (found.first.numpy() == first).all()
    assert (found.second.numpy() == rest.argmax(1)).all()
    np.testing.assert_allclose(found.top, logits.max(1), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(found.margin, logits.max(1) - rest.max(1), rtol=1e-5, atol=2e-5)
    np.testing.assert_allclose(found.spread, (logits - log_softmax(logits))[:, 0], rtol=1e-7, atol=1e-5)


@pytest.mark.parametrize("ops", ARITHMETIC, ids=["exact", "free"])
@pytest.mark.parametrize("vocab", [2, 3, 63, 64, 65, 129, 500])
@pytest.mark.parametrize("rows", [1, 16, 17, 40])
def test_of_random_logits(ops: Arithmetic, vocab: int, rows: int) -> None:
    x, w = given(rows, vocab)
    check(best(ops, x, w), x.double().numpy() @ w.double().numpy().T)


@pytest.mark.parametrize("ops", ARITHMETIC, ids=["exact", "free"])
def test_of_equals_the_lowest(ops: Arithmetic) -> None:
    """Exact ties, within a part of the vocabulary and across parts."""
    x, w = given(40, 500, whole=True)
    logits = x.double().numpy() @ w.double().numpy().T
    tied = [np.flatnonzero(row == row.max()) for row in logits]
    assert sum(len(one) > 1 for one in tied) > 10
    assert any(one[0] // 64 != one[1] // 64 for one in tied if len(one) > 1)
    assert any(one[0] // 64 == one[1] // 64 for one in tied if len(one) > 1)
    found = best(ops, x, w)
    check(found, logits)
    assert [m == 0 for m in found.margin.tolist()] == [len(one) > 1 for one in tied]


def test_all_logits_are_equal() -> None:
    found = best(ARITHMETIC[0], torch.zeros(3, WIDTH), given(1, 200)[1])
    assert found.first.tolist() == [0, 0, 0]
    assert found.second.tolist() == [1, 1, 1]
    assert found.margin.tolist() == [0, 0, 0]
    np.testing.assert_allclose(found.spread, np.log(200))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_likelihood_and_divergence(scale: float) -> None:
    """Of large logits too, where exponentials alone would overflow."""
    x, w = given(40, 300, scale=scale)
    y, v = given(40, 300, seed=1, scale=scale)
    wanted = np.random.default_rng(2).integers(0, 300, 40)
    found = best(ARITHMETIC[1], x, w, wanted.tolist(), (y, v))
    ours, theirs = (log_softmax(a.double().numpy() @ b.double().numpy().T) for a, b in ((x, w), (y, v)))
    at = np.arange(40)
    close = {"rtol": 2e-6, "atol": 1e-5 * scale}
    np.testing.assert_allclose(found.log_likelihood, ours[at, wanted], **close)
    np.testing.assert_allclose(found.divergence, (np.exp(ours) * (ours - theirs)).sum(1), **close)


def test_divergence_from_itself_is_nothing() -> None:
    x, w = given(40, 300)
    found = best(ARITHMETIC[0], x, w, other=(x, w))
    assert float(found.divergence.abs().max()) < 1e-12


@pytest.mark.parametrize("judged", [0, 1, 16, 20])
def test_rows_behind_those_with_a_token(judged: int) -> None:
    """The two best of all rows; likelihoods of those with a token, whatever stands behind them."""
    x, w = given(40, 300)
    wanted = list(range(judged))
    some, every = best(ARITHMETIC[0], x, w, wanted), best(ARITHMETIC[0], x, w, [*wanted, *[0] * (40 - judged)])
    for name in ("first", "second", "top", "margin"):
        assert torch.equal(getattr(some, name), getattr(every, name))
    assert torch.equal(some.log_likelihood[:judged], every.log_likelihood[:judged])
    assert some.spread.shape == some.wanted.shape == (40,)


def test_what_was_not_asked_for_is_not_there() -> None:
    found = best(ARITHMETIC[0], *given(5, 100))
    assert torch.isnan(found.wanted).all()
    assert torch.isnan(found.divergence).all()


@pytest.mark.parametrize("ops", ARITHMETIC, ids=["exact", "free"])
def test_no_rows(ops: Arithmetic) -> None:
    """What is left of a text that is shorter than its drafts."""
    found = best(ops, *given(0, 100))
    assert found.first.shape == (0,)


def test_a_narrow_matrix_is_widened() -> None:
    """A bfloat16 output matrix gives the logits of its values in float32."""
    x, w = given(20, 300)
    found, wide = best(ARITHMETIC[0], x, w.bfloat16()), best(ARITHMETIC[0], x, w.bfloat16().float())
    assert torch.equal(found.top, wide.top)
    assert torch.equal(found.first, wide.first)
