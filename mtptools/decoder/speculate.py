"""Plain and speculative decoding, each leaving a trace that can be compared bit for bit.

Both arms read the prompt by the same procedure: in passes of 256 tokens, no states kept. Then the plain arm
reads one token a pass; the speculative arm reads the last token and k drafts in one pass ("fast"), or one by
one until a draft fails ("serial", exact by construction and the oracle of the fast mode).

Two acceptance rules. "match": every token is the target's own sample, with noise that belongs to its position, and a
draft is accepted if it is that sample; the output is that of plain decoding, bit for bit. "rejection": the classic
rule of `rejection.py`; the output has the same distribution, not the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder.cache import Cache
from mtptools.decoder.drafter import Drafter
from mtptools.decoder.finite import not_finite
from mtptools.decoder.model import Model
from mtptools.decoder.prompt_room import check_room
from mtptools.decoder.proposer import Proposer
from mtptools.decoder.rejection import Proposal, settle
from mtptools.decoder.sampling import DRAFT_CHOICES, GREEDY, Sampling, choose, top_two
from mtptools.decoder.trace import Trace
from mtptools.decoder.trunk import States
from mtptools.errors import UsageError

__all__ = ["ACCEPTANCE_RULES", "PREFILL", "decode_plain", "decode_speculative", "prefill"]

MODES: Final = ("fast", "serial")
ACCEPTANCE_RULES: Final = ("match", "rejection")

PREFILL: Final = 256
"""Prompt tokens a pass; bounds memory, changes nothing else."""

OnTokens = Callable[[list[int]], None]
Corrupt = Callable[[list[int], int], list[int]]
"""(drafts, number of the step) to the drafts to verify instead: for tests of rejection."""


class _Writer:
    """Turns logits rows into emitted tokens and their records."""

    def __init__(
        self,
        model: Model,
        trace: Trace,
        n: int,
        sampling: Sampling,
        keep: Collection[int],
        stop: Collection[int],
        on: OnTokens | None,
        acceptance: str = "match",
    ) -> None:
        self.model, self.trace, self.n, self.sampling, self.keep = model, trace, n, sampling, keep
        self.stop, self.on, self.acceptance = stop, on, acceptance
        self.text = list(trace.prompt)
        self.done = False

    def emit(self, row: Tensor, proposal: Proposal | None = None) -> int:
        """The next token, from the trunk's logits [vocab]; the proposal was accepted if it is its token."""
        values = row.cpu().numpy()
        if not np.isfinite(values).all():
            raise not_finite(self.model, self.text)
        trace = self.trace
        _, margin = top_two(values)
        token = self._settle(values, proposal)
        if len(trace.tokens) in self.keep:
            trace.logits[len(trace.tokens)] = values.copy()
        trace.digests.append(xxhash.xxh3_128_hexdigest(values.data))
        trace.margins.append(margin)
        trace.tokens.append(token)
        self.text.append(token)
        self.done = len(trace.tokens) >= self.n or token in self.stop
        return token

    def _settle(self, logits: NDArray[np.float32], proposal: Proposal | None) -> int:
        if self.acceptance == "match":
            return choose(logits, self.text, self.sampling)
        p = self.sampling.probabilities(logits, self.text)
        return settle(p, proposal, self.sampling.seed, len(self.text))

    def stream(self, tokens: list[int]) -> None:
        if self.on is not None:
            self.on(tokens)


def prefill(model: Model, ids: Sequence[int], cache: Cache) -> States:
    """Read the prompt; the states of all its positions."""
    parts = [model.trunk.forward(ids[at : at + PREFILL], cache) for at in range(0, len(ids), PREFILL)]
    return States.joined(parts)


def _check(model: Model, ids: Sequence[int], n: int) -> None:
    """Raises UsageError for what cannot be decoded, each reason with its own hint."""
    vocab, context = model.trunk.embed.shape[0], model.hparams.context_length
    if n < 1:
        raise UsageError(f"{n} tokens are nothing to decode", hint="--tokens 1 or more")
    check_room(len(ids), n, context)
    strange = next((i for i in ids if not 0 <= i < vocab), None)
    if strange is not None:
        raise UsageError(
            f"the prompt holds the token id {strange}, the model knows 0 to {vocab - 1}",
            where=model.where,
            hint="check that the tokenizer belongs to the model",
        )


def _begin(model: Model, ids: Sequence[int], writer: _Writer) -> tuple[Cache, States]:
    _check(model, ids, writer.n)
    started = time.perf_counter()
    cache = model.trunk.new_cache()
    states = prefill(model, ids, cache)
    row = model.trunk.logits(states.part(len(ids) - 1, len(ids)))[0]
    writer.stream([writer.emit(row)])
    writer.trace.prefill_seconds = time.perf_counter() - started
    return cache, states


@torch.inference_mode()
def decode_plain(
    model: Model,
    ids: Sequence[int],
    n: int,
    *,
    sampling: Sampling = GREEDY,
    keep_logits: Collection[int] = (),
    keep_states: bool = False,
    stop: Collection[int] = (),
    on_tokens: OnTokens | None = None,
) -> Trace:
    """n tokens after the prompt, one a pass.

    keep_logits  emitted tokens (by number) whose logits row is kept whole
    keep_states  keep the trunk states of every position read, for `acceptance.simulate`
    stop         token ids that end the text
    """
    trace = Trace(list(ids), n)
    writer = _Writer(model, trace, n, sampling, keep_logits, stop, on_tokens)
    cache, states = _begin(model, ids, writer)
    parts = [states]
    started = time.perf_counter()
    while not writer.done:
        states = model.trunk.forward(trace.tokens[-1:], cache)
        if keep_states:
            parts.append(states)
        writer.stream([writer.emit(model.trunk.logits(states)[0])])
    trace.decode_seconds = time.perf_counter() - started
    trace.states = States.joined(parts) if keep_states else None
    return trace


@torch.inference_mode()
def decode_speculative(
    model: Model,
    ids: Sequence[int],
    n: int,
    k: int,
    *,
    mode: str = "fast",
    sampling: Sampling = GREEDY,
    acceptance: str = "match",
    draft: str = "sampler",
    corrupt: Corrupt | None = None,
    keep_logits: Collection[int] = (),
    stop: Collection[int] = (),
    on_tokens: OnTokens | None = None,
) -> Trace:
    """n tokens after the prompt, k drafts a pass (fewer when fewer than k + 1 tokens are left to emit).

    acceptance  "match" or "rejection"
    draft       how a draft is chosen: one of DRAFT_CHOICES, see `Sampling.for_drafts`

    Raises MissingHeadError when the model has no head.
    """
    if acceptance not in ACCEPTANCE_RULES or draft not in DRAFT_CHOICES:
        raise UsageError(
            f"no acceptance rule {acceptance!r} with drafts by {draft!r}",
            hint=f"rules: {', '.join(ACCEPTANCE_RULES)}; drafts: {', '.join(DRAFT_CHOICES)}",
        )
    if mode not in MODES:
        raise UsageError(f"no such way to verify drafts: {mode!r}", hint=f"one of: {', '.join(MODES)}")
    head, drawn = model.require_head(), acceptance == "rejection"
    trace = Trace(list(ids), n)
    writer = _Writer(model, trace, n, sampling, keep_logits, stop, on_tokens, acceptance)
    cache, states = _begin(model, ids, writer)
    drafter = Drafter(head)
    started = time.perf_counter()
    behind = [*trace.prompt[1:], trace.tokens[0]]
    while not writer.done:
        drafter.observe(states.tap(head.wiring.tap), behind)
        count = min(k, n - len(trace.tokens) - 1)
        proposer = Proposer(writer.text, sampling.for_drafts(draft), drawn=drawn)
        tokens, drafts = drafter.draft(count, proposer), proposer.proposals
        if corrupt is not None:
            drafts = [Proposal(token) for token in corrupt(tokens, trace.drafts.steps)]
        before = len(trace.tokens)
        states = (_verify_fast if mode == "fast" else _verify_serial)(model, cache, drafts, writer)
        behind = trace.tokens[before:]
        trace.drafts.add(len(drafts), len(behind) - 1)
        writer.stream(behind)
    trace.decode_seconds = time.perf_counter() - started
    return trace


def _verify_fast(model: Model, cache: Cache, drafts: list[Proposal], writer: _Writer) -> States:
    """Read the last token and all drafts in one pass; emit; forget what was rejected. States of what is kept."""
    before = cache.length
    cache.start()
    states = model.trunk.forward([writer.trace.tokens[-1], *(draft.token for draft in drafts)], cache)
    logits = model.trunk.logits(states)
    kept = 0
    for row, draft in enumerate([*drafts, None]):
        token = writer.emit(logits[row], draft)
        kept += 1
        if writer.done or draft is None or token != draft.token:
            break
    cache.rollback(before + kept)
    return states.part(0, kept)


def _verify_serial(model: Model, cache: Cache, drafts: list[Proposal], writer: _Writer) -> States:
    """Read one token at a time for as long as the drafts are right. Nothing is ever rolled back."""
    parts = []
    for draft in [*drafts, None]:
        parts.append(model.trunk.forward(writer.trace.tokens[-1:], cache))
        token = writer.emit(model.trunk.logits(parts[-1])[0], draft)
        if writer.done or draft is None or token != draft.token:
            break
    return States.joined(parts)
