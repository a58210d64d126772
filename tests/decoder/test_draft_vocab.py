"""Reduced heads in the decoder: the output stays the trunk's, the drafts are the whole head's over the tokens kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder.acceptance import first_hits, simulate
from mtptools.decoder.load import load_model, with_vocabulary
from mtptools.decoder.model import Model
from mtptools.decoder.packed import Packed
from mtptools.decoder.parity import compare
from mtptools.decoder.penalties import Dry, Penalties
from mtptools.decoder.rejection import Proposal, keep_probability, residual
from mtptools.decoder.sampling import Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.errors import InputError
from tests.conftest import FIXTURES
from tests.decoder import toy
from tests.decoder.reduced_heads import TRAINED, most, rows, trained, vocabulary
from tests.decoder.test_trained import goldens

SAMPLED = Sampling(temperature=1.0, top_k=60, top_p=0.98, seed=3)


@cache
def prompt(name: str) -> list[int]:
    return [int(one) for one in min((golden["ids"] for golden in goldens(FIXTURES / name).values()), key=len)]


# --- exactness -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_output_is_the_trunks(name: str) -> None:
    """Logits of plain and speculative decoding, bit for bit; every draft is one of the tokens kept."""
    whole, ids = trained(name), prompt(name)
    kept = most(whole.hparams.vocab_size)
    model = whole.with_head(whole.require_head().over(kept))
    plain = decode_plain(model, ids, 14, keep_states=True)
    drafted: list[int] = []

    def seen(drafts: list[int], step: int) -> list[int]:
        drafted.extend(drafts)
        return drafts

    accepted = 0
    for k, mode in ((1, "fast"), (2, "fast"), (3, "fast"), (3, "serial"), (5, "fast")):
        trace = decode_speculative(model, ids, 14, k, mode=mode, corrupt=seen)
        assert compare(plain, trace).equal, (k, mode)
        assert simulate(model.require_head(), plain, k) == trace.drafts
        accepted += sum(trace.drafts.accepted)
    assert accepted
    assert len(drafted) > accepted
    assert kept.mask[drafted].all()
    sampled = decode_plain(model, ids, 12, sampling=SAMPLED)
    assert sampled.tokens != plain.tokens[:12]
    assert compare(sampled, decode_speculative(model, ids, 12, 3, sampling=SAMPLED)).equal


@pytest.mark.parametrize("name", ["qwen35moe", "deepseekv3"])
def test_rejection_runs(name: str) -> None:
    """By the classic rule the text is drawn with numbers of its own: the same whether drafts are read at once or not.

    Tokens that the head cannot draft come out all the same.
    """
    whole, ids = trained(name), prompt(name)
    size = whole.hparams.vocab_size
    kept = vocabulary(range(size // 2), size)
    model = whole.with_head(whole.require_head().over(kept))
    sampling = replace(SAMPLED, temperature=1.3)
    arms = [
        decode_speculative(model, ids, 24, k, mode=mode, sampling=sampling, acceptance="rejection")
        for k, mode in ((3, "fast"), (3, "serial"))
    ]
    assert compare(*arms).equal
    assert sum(arms[0].drafts.accepted)
    assert not kept.mask[arms[0].tokens].all()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7, top_k=1500),
        Sampling(temperature=1.5, top_p=0.9, min_p=0.02),
        Sampling(temperature=0.01),
    ],
    ids=str,
)
def test_nothing_but_the_tokens_kept_is_drawn(sampling: Sampling) -> None:
    """Chains on logits with -inf are the chains on the tokens kept alone, penalties and all."""
    rng = np.random.default_rng(0)
    kept = most(512)
    logits = np.full(512, -np.inf, np.float32)
    logits[kept.ids] = rng.standard_normal(len(kept)).astype(np.float32) * 3
    history = [int(one) for one in rng.integers(0, 512, 60)] + [8, 9, 10, 11, 12, 8, 9, 10, 11]
    rank = {int(token): row for row, token in enumerate(kept.ids)}
    for more in (
        sampling,
        replace(sampling, penalties=Penalties(repetition=1.3, presence=0.4, frequency=0.2)),
        replace(sampling, dry=Dry(multiplier=0.8)),
    ):
        with np.errstate(invalid="raise", divide="raise"):
            found = more.probabilities(logits, history)
        assert np.isfinite(found).all()
        assert found[~kept.mask].sum() == 0
        if not more.dry:  # which looks at neighbours
            short = [rank[token] for token in history if token in rank]
            np.testing.assert_allclose(found[kept.ids], more.probabilities(logits[kept.ids], short), atol=1e-12)


def test_the_classic_rule_keeps_the_targets_distribution() -> None:
    """Sum over drafts of the chance to emit each token, for a q that is zero on half of the tokens."""
    rng = np.random.default_rng(1)
    p, q = rng.dirichlet(np.ones(16)), rng.dirichlet(np.ones(16))
    q[::2] = 0
    q /= q.sum()
    emitted = np.zeros(16)
    for token in range(16):
        proposal = Proposal(token, q)
        keep = keep_probability(p, proposal)
        emitted[token] += q[token] * keep
        emitted += q[token] * (1 - keep) * (residual(p, proposal) if keep < 1 else 0)
    np.testing.assert_allclose(emitted, p, atol=1e-12)


# --- against the whole head ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qwen35", "deepseekv3", "deepseekv4"])
def test_drafts_are_the_whole_heads_over_the_tokens_kept(name: str) -> None:
    model, ids = trained(name), prompt(name)
    kept = most(model.hparams.vocab_size)
    head = model.require_head()
    for layer in range(head.depth):
        whole, reduced = rows(model, head, ids, layer), rows(model, head.over(kept), ids, layer)
        assert whole.shape == reduced.shape
        assert torch.isinf(reduced[:, ~kept.mask]).all()
        torch.testing.assert_close(reduced[:, kept.ids], whole[:, kept.ids], rtol=0, atol=1e-5)
        best = torch.from_numpy(kept.ids)[whole[:, kept.ids].argmax(1)]
        assert torch.equal(reduced.argmax(1), best)
        assert not torch.equal(reduced.argmax(1), whole.argmax(1))


def test_ties_go_to_the_smaller_id(load: Callable[..., Model]) -> None:
    model = load()
    head = model.require_head()
    layer = head.layers[0]
    flat = replace(head, layers=(replace(layer, output=torch.zeros_like(layer.output)),))
    for ids, draft in (([7, 40, 300], 7), ([40, 300], 40), ([300], 300)):
        assert int(rows(model, flat.over(vocabulary(ids)), [3, 5])[0].argmax()) == draft


@pytest.mark.parametrize("name", ["qwen35moe", "deepseekv3"])
def test_the_whole_vocabulary_changes_no_bit(name: str) -> None:
    model, ids = trained(name), prompt(name)
    head = model.require_head()
    size = model.hparams.vocab_size
    every = head.over(vocabulary(range(size), size))
    for layer in range(head.depth):
        assert torch.equal(rows(model, every, ids, layer), rows(model, head, ids, layer))
    plain = decode_plain(model, ids, 12, keep_states=True)
    for k in (1, 4):
        assert simulate(every, plain, k) == simulate(head, plain, k)
    assert (first_hits(every, plain) == first_hits(head, plain)).all()


def test_reducing_composes(load: Callable[..., Model]) -> None:
    model = load(depth=2)
    head, ids = model.require_head(), [3, 5, 99]
    half, few = vocabulary(range(0, toy.VOCAB, 2)), vocabulary([4, 10, 200, 382])
    twice, once = head.over(half).over(few), head.over(few)
    assert twice.layers[0].vocabulary == few
    assert head.layers[0].vocabulary == vocabulary(range(toy.VOCAB))
    assert twice.layers[1].output is twice.layers[0].output  # as in the whole head
    for layer in (0, 1):
        assert torch.equal(rows(model, twice, ids, layer), rows(model, once, ids, layer))
    with pytest.raises(InputError, match=r"cannot draft 1 of these 2 tokens any more, 5 the first"):
        head.over(half).over(vocabulary([4, 5]))
    with pytest.raises(InputError, match=r"of 400 tokens, the model has 384"):
        head.over(vocabulary([4, 5], 400))


@pytest.mark.parametrize("kind", ["hf", "Q4_K"])
def test_rows_of_a_matrix_that_stays_as_it_is_stored(kind: str, toy_path: Callable[..., Path]) -> None:
    kept, ids = vocabulary([0, 1, 2, 9, 10, 77, 383]), [3, 5, 99]
    source = open_checkpoint(toy_path(False, kind))
    loaded, stored = (with_vocabulary(load_model(source, weights=how), kept) for how in ("loaded", "stored"))
    assert isinstance(stored.require_head().layers[0].output, Packed)
    assert torch.equal(rows(loaded, loaded.require_head(), ids), rows(stored, stored.require_head(), ids))
