"""The rejection rule leaves the target's distribution as it is: by enumeration, by chi-square, and with wrong rules.

Target and head are tables over a vocabulary of five; their logits depend on the last tokens, and the chain has filters
and penalties, so distributions depend on the whole text.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder import speculate
from mtptools.decoder.penalties import Dry, Penalties
from mtptools.decoder.rejection import Proposal, keep_probability, residual, settle
from mtptools.decoder.sampling import ACCEPT, DRAFT, DRAFT_CHOICES, SAMPLE, Sampling
from mtptools.decoder.sampling import draw as draw_scores
from mtptools.decoder.trunk import States

V, N = 5, 3
Row = NDArray[np.float32]
P = NDArray[np.float64]
Text = tuple[int, ...]
PROMPT: Text = (0, 3)
CHAIN = Sampling(0.9, 4, 0.8, 0.05, penalties=Penalties(1.2, 0.3, 0.1), dry=Dry(0.5, 1.5, 1, breakers=frozenset({4})))
_RANDOM = np.random.default_rng(8)
TARGET = _RANDOM.normal(0, 1.2, (V, V, V)).astype(np.float32)
HEAD = (TARGET + _RANDOM.normal(0, 0.9, (V, V, V))).astype(np.float32)


def target(text: Sequence[int]) -> Row:
    return np.asarray(TARGET[text[-2], text[-1]])


def head(text: Sequence[int]) -> Row:
    return np.asarray(HEAD[text[-2], text[-1]])


@cache
def of_target(text: Text, sampling: Sampling = CHAIN) -> P:
    return sampling.probabilities(target(text), text)


@cache
def of_head(text: Text, sampling: Sampling = CHAIN) -> P:
    return sampling.probabilities(head(text), text)


@np.errstate(divide="ignore")
def draw(p: P, seed: int, position: int, purpose: int = SAMPLE) -> int:
    return draw_scores(np.log(p), seed, position, purpose)


class Rule:
    """The parts of the rule, to be replaced by wrong ones."""

    def __init__(self, draft: str = "sampler") -> None:
        self.drafts = CHAIN.for_drafts(draft)

    def p(self, text: Text) -> P:
        return of_target(text)

    def drawn(self, text: Text) -> P:
        """What drafts are drawn from."""
        return of_head(text, self.drafts)

    def claimed(self, text: Text) -> P | None:
        """What the rule is told."""
        return self.drawn(text) if self.drafts.temperature else None

    def rest(self, p: P, proposal: Proposal) -> P:
        return residual(p, proposal)


class WrongProposal(Rule):
    def claimed(self, text: Text) -> P:
        return of_head(text, replace(CHAIN, temperature=3.0))


class ResidualIsP(Rule):
    def rest(self, p: P, proposal: Proposal) -> P:
        return p


class NoTopPForTheTarget(Rule):
    def p(self, text: Text) -> P:
        return of_target(text, replace(CHAIN, top_p=1.0))


class NoTopPClaimedForTheDraft(Rule):
    def claimed(self, text: Text) -> P:
        return of_head(text, replace(CHAIN, top_p=1.0))


class NoPenaltiesForTheTarget(Rule):
    def p(self, text: Text) -> P:
        return of_target(text, replace(CHAIN, penalties=Penalties(), dry=Dry()))


WRONG = [WrongProposal, ResidualIsP, NoTopPForTheTarget, NoTopPClaimedForTheDraft, NoPenaltiesForTheTarget]


def plain_joint() -> P:
    """The exact distribution of N tokens by plain sampling, [V] * N."""
    joint = np.ones((V,) * N)
    for tokens in itertools.product(range(V), repeat=N):
        for at in range(N):
            text = PROMPT + tokens[:at]
            joint[tokens] *= of_target(text)[tokens[at]]
    return joint


def speculative_joint(rule: Rule, k: int) -> P:
    """The exact distribution of N tokens by the rule: every draft, acceptance and draw, with its probability."""
    joint = np.zeros((V,) * N)

    def walk(text: Text, left: int, chance: float) -> None:
        """`left` drafts remain in this step."""
        done = text[len(PROMPT) :]
        if len(done) == N:
            joint[done] += chance
            return
        p = rule.p(text)
        if not left:
            for token in np.flatnonzero(p):
                start((*text, int(token)), chance * p[token])
            return
        drawn, claimed = rule.drawn(text), rule.claimed(text)
        for token in np.flatnonzero(drawn):
            proposal = Proposal(int(token), claimed)
            keep = keep_probability(p, proposal)
            walk((*text, int(token)), left - 1, chance * drawn[token] * keep)
            rest = rule.rest(p, proposal)
            for other in np.flatnonzero(rest):
                start((*text, int(other)), chance * drawn[token] * (1 - keep) * rest[other])

    def start(text: Text, chance: float) -> None:
        if chance:
            walk(text, min(k, N - (len(text) - len(PROMPT)) - 1), chance)

    walk(PROMPT, 0, 1.0)  # the first token comes from the prompt's pass
    return joint


@pytest.mark.parametrize("draft", DRAFT_CHOICES)
@pytest.mark.parametrize("k", [1, 2])
def test_joint_is_that_of_plain_sampling(k: int, draft: str) -> None:
    joint = speculative_joint(Rule(draft), k)
    assert joint.sum() == pytest.approx(1, abs=1e-12)
    assert np.abs(joint - plain_joint()).max() < 1e-15


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("k", [1, 2])
def test_wrong_rules_are_seen_exactly(k: int, wrong: type[Rule]) -> None:
    assert np.abs(speculative_joint(wrong(), k) - plain_joint()).max() > 1e-3


def sampled(rule: Rule, k: int, seed: int) -> Text:
    """N tokens by the rule, with the decoder's random numbers; a plain retelling of its loop."""
    text = PROMPT
    text += (settle(rule.p(text), None, seed, len(text)),)
    while (made := len(text) - len(PROMPT)) < N:
        proposals: list[Proposal] = []
        for _ in range(min(k, N - made - 1)):
            ahead = text + tuple(one.token for one in proposals)
            token = draw(rule.drawn(ahead), seed, len(ahead), DRAFT)
            proposals.append(Proposal(token, rule.claimed(ahead)))
        for proposal in (*proposals, None):
            p, position = rule.p(text), len(text)
            token = settle(p, proposal, seed, position)
            if proposal is not None and token != proposal.token and type(rule) is not Rule:
                token = settle(rule.rest(p, proposal), None, seed, position)
            text += (token,)
            if proposal is None or token != proposal.token:
                break
    return text[len(PROMPT) :]


def chi_square(counts: Counter[Text], joint: P) -> tuple[float, float]:
    """(statistic, its 1 - 1e-9 quantile by Wilson and Hilferty); cells that expect fewer than 5 are one."""
    n = counts.total()
    seen = np.array([counts[tokens] for tokens in itertools.product(range(V), repeat=N)], float)
    expected = joint.ravel() * n
    if seen[expected == 0].sum():
        return np.inf, 0.0
    few = expected < 5
    seen, expected = np.append(seen[~few], seen[few].sum()), np.append(expected[~few], expected[few].sum())
    if expected[-1] < 5:
        seen, expected = np.append(seen[:-2], seen[-2:].sum()), np.append(expected[:-2], expected[-2:].sum())
    free, z = len(seen) - 1, 5.998
    limit = free * (1 - 2 / (9 * free) + z * np.sqrt(2 / (9 * free))) ** 3
    return float(((seen - expected) ** 2 / expected).sum()), float(limit)


SAMPLES = 20_000


def test_samples_have_that_distribution() -> None:
    statistic, limit = chi_square(Counter(sampled(Rule(), 2, seed) for seed in range(SAMPLES)), plain_joint())
    assert statistic < limit


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_rules_are_seen_in_samples(wrong: type[Rule]) -> None:
    counts = Counter(sampled(wrong(), 2, seed) for seed in range(SAMPLES // 4))  # enough to see it
    statistic, limit = chi_square(counts, plain_joint())
    assert statistic > limit


def matched(seed: int, again: bool) -> Text:
    """N tokens by the match rule. `again`: after a mismatch a new sample is drawn, where the compared one belongs."""
    text = PROMPT
    for _ in range(N):
        draft, token = (draw(p, seed, len(text)) for p in (of_head(text), of_target(text)))
        if again and token != draft:
            token = draw(of_target(text), seed, len(text), ACCEPT)
        text += (token,)
    return text[len(PROMPT) :]


@pytest.mark.parametrize("again", [False, True])
def test_match_emits_the_sample_it_compared(again: bool) -> None:
    statistic, limit = chi_square(Counter(matched(seed, again) for seed in range(SAMPLES)), plain_joint())
    assert (statistic > limit) == again


# The decoder's own loop over the same tables.


class TableTrunk:
    """States hold the text so far, one row a position."""

    embed = torch.zeros((V, 1))

    def new_cache(self) -> Any:
        cache = SimpleNamespace(text=[], start=lambda: None, length=0)

        def rollback(length: int) -> None:
            cache.text, cache.length = cache.text[:length], length

        cache.rollback = rollback
        return cache

    def forward(self, ids: Sequence[int], cache: Any) -> States:
        rows = torch.full((len(ids), 16), -1.0)
        for row, token in zip(rows, ids, strict=True):
            cache.text = [*cache.text, token]
            row[: len(cache.text)] = torch.tensor(cache.text)
        cache.length = len(cache.text)
        return States(rows, rows)

    def logits(self, states: States) -> Tensor:
        texts = [[0, *(int(t) for t in row if t >= 0)] for row in states.post]
        return torch.from_numpy(np.stack([target(text) for text in texts]))


class TableDrafter:
    def __init__(self, _: object) -> None:
        self.text = list(PROMPT[:1])

    def observe(self, states: Tensor, next_tokens: Sequence[int]) -> None:
        self.text.extend(next_tokens)

    def draft(self, k: int, pick: Callable[[Tensor, int], int]) -> list[int]:
        text = list(self.text)
        for _ in range(k):
            text.append(pick(torch.from_numpy(head(text).copy()), len(text)))
        return text[len(self.text) :]


@pytest.mark.parametrize("mode", ["fast", "serial"])
@pytest.mark.parametrize("draft", DRAFT_CHOICES)
def test_the_decoder_does_this(draft: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token what the retelling above gives, so its distribution is the decoder's."""
    monkeypatch.setattr(speculate, "Drafter", TableDrafter)
    model: Any = SimpleNamespace(
        where="tables",
        trunk=TableTrunk(),
        hparams=SimpleNamespace(context_length=0),
        require_head=lambda: SimpleNamespace(wiring=SimpleNamespace(tap="post")),
    )
    accepted = rejected = 0
    for seed in range(60):
        for k in (1, 2):
            trace = speculate.decode_speculative(
                model,
                list(PROMPT),
                N,
                k,
                mode=mode,
                sampling=replace(CHAIN, seed=seed),
                acceptance="rejection",
                draft=draft,
            )
            assert tuple(trace.tokens) == sampled(Rule(draft), k, seed)
            accepted += sum(trace.drafts.accepted)
            rejected += sum(trace.drafts.drafted) - sum(trace.drafts.accepted)
    assert min(accepted, rejected) > 20
