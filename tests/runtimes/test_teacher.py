"""Our decoder on a given text says what it said when it wrote it, to the bit, and routers are listened to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.speculate import decode_speculative
from mtptools.errors import UsageError
from mtptools.runtimes.generation import Generation
from mtptools.runtimes.teacher import read
from tests.conftest import FIXTURES

PROMPT, TOKENS, K = [40, 300, 7, 12], 16, 3


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_model(open_checkpoint(FIXTURES / "qwen35moe" / "gguf" / "model-BF16.gguf"), check=False)
    torch.set_num_threads(threads)


def test_the_same_to_the_bit(model: Model) -> None:
    """Against speculative decoding: other passes, the same logits; and the drafts it counted."""
    wrote = decode_speculative(model, PROMPT, TOKENS, K, keep_logits=range(TOKENS))
    made = Generation(tuple(PROMPT), tuple(wrote.tokens), ({},) * TOKENS)
    found = read(model, made, K, {2: 5})
    assert found.best == wrote.tokens
    for at in range(TOKENS):
        row = wrote.logits[at]
        assert found.logits[at] == {token: float(row[token]) for token in found.logits[at]}
        assert found.margin(at) == pytest.approx(wrote.margins[at], rel=1e-6)
        assert len(found.logits[at]) == 10 + (at == 2)
    assert found.counts is not None
    assert (found.counts.drafted, found.counts.accepted) == (wrote.drafts.drafted, wrote.drafts.accepted)
    gaps = [
        abs(row[token] - other[token])
        for row, other in zip(found.logits, found.disturbed, strict=True)
        for token in row
    ]
    spread = float(np.std([value for row in found.logits for value in row.values()]))
    assert 0 < np.mean(gaps) < spread / 50  # off, by about what rounding does
    assert len(found.rerouted) == TOKENS
    assert not all(found.rerouted)


def test_what_cannot_be_emitted_is_not_the_best(model: Model) -> None:
    free = read(model, Generation(tuple(PROMPT), (5, 6), ({}, {})), K)
    held = read(model, Generation(tuple(PROMPT), (5, 6), ({}, {}), banned=frozenset(free.best)), K)
    assert not set(held.best) & set(free.best)
    assert held.best[0] == free.second[0]
    assert set(held.logits[0]) >= {5, held.best[0], held.second[0]}


def test_a_text_beyond_the_context(model: Model) -> None:
    long = Generation((1,) * 5000, (2,), ({},))
    with pytest.raises(UsageError, match="do not fit the context"):
        read(model, long, K)
