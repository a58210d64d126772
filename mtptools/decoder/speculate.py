"""Plain and speculative decoding, each leaving a trace that can be compared bit for bit.

Both arms read the prompt by the same procedure: in passes of 256 tokens, no states kept. Then the plain arm
reads one token a pass; the speculative arm reads the last token and k drafts in one pass ("fast"), or one by
one until a draft fails ("serial", exact by construction and the oracle of the fast mode).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import torch
import xxhash
from torch import Tensor

from mtptools.decoder.cache import Cache
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Drafter
from mtptools.decoder.sampling import GREEDY, Sampling, choose, top_two
from mtptools.decoder.trace import Trace
from mtptools.decoder.trunk import States
from mtptools.errors import UsageError

__all__ = ["PREFILL", "decode_plain", "decode_speculative", "prefill"]

PREFILL: Final = 256
"""Prompt tokens a pass; bounds memory, changes nothing else."""

OnTokens = Callable[[list[int]], None]
Corrupt = Callable[[list[int], int], list[int]]
"""(drafts, number of the step) to the drafts to verify instead: for tests of rejection."""


class _Writer:
    """Turns logits rows into emitted tokens and their records."""

    def __init__(
        self,
        trace: Trace,
        n: int,
        sampling: Sampling,
        keep: Collection[int],
        stop: Collection[int],
        on: OnTokens | None,
    ) -> None:
        self.trace, self.n, self.sampling, self.keep, self.stop, self.on = trace, n, sampling, keep, stop, on
        self.done = False

    @property
    def position(self) -> int:
        """Absolute position of the next token."""
        return len(self.trace.prompt) + len(self.trace.tokens)

    def emit(self, row: Tensor) -> int:
        values = row.cpu().numpy()
        trace = self.trace
        best, margin = top_two(values)
        greedy = self.sampling.temperature == 0
        token = best if greedy else choose(values, self.position, self.sampling)
        if len(trace.tokens) in self.keep:
            trace.logits[len(trace.tokens)] = values.copy()
        trace.digests.append(xxhash.xxh3_128_hexdigest(values.data))
        trace.margins.append(margin)
        trace.tokens.append(token)
        self.done = len(trace.tokens) >= self.n or token in self.stop
        return token

    def stream(self, tokens: list[int]) -> None:
        if self.on is not None:
            self.on(tokens)


def prefill(model: Model, ids: Sequence[int], cache: Cache) -> States:
    """Read the prompt; the states of all its positions."""
    parts = [model.trunk.forward(ids[at : at + PREFILL], cache) for at in range(0, len(ids), PREFILL)]
    return States.joined(parts)


def _begin(model: Model, ids: Sequence[int], writer: _Writer) -> tuple[Cache, States]:
    vocab = model.trunk.embed.shape[0]
    if not ids or min(ids) < 0 or max(ids) >= vocab or writer.n < 1:
        raise UsageError(
            f"cannot decode {writer.n} tokens after a prompt of {len(ids)}: both are at least 1, ids below {vocab}",
            hint="give a prompt, and check that the tokenizer belongs to the model",
        )
    context = model.hparams.context_length
    if context and len(ids) + writer.n > context:
        raise UsageError(
            f"a prompt of {len(ids)} tokens and {writer.n} more do not fit the model's context of {context}",
            hint="a shorter prompt, or fewer --tokens",
        )
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
    writer = _Writer(trace, n, sampling, keep_logits, stop, on_tokens)
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
    corrupt: Corrupt | None = None,
    keep_logits: Collection[int] = (),
    stop: Collection[int] = (),
    on_tokens: OnTokens | None = None,
) -> Trace:
    """n tokens after the prompt, k drafts a pass (fewer when fewer than k + 1 tokens are left to emit).

    Raises MissingHeadError when the model has no head.
    """
    head = model.require_head()
    trace = Trace(list(ids), n)
    writer = _Writer(trace, n, sampling, keep_logits, stop, on_tokens)
    cache, states = _begin(model, ids, writer)
    drafter = Drafter(head)
    started = time.perf_counter()
    behind = [*trace.prompt[1:], trace.tokens[0]]
    while not writer.done:
        drafter.observe(states.tap(head.wiring.tap), behind)
        count = min(k, n - len(trace.tokens) - 1)
        drafts = drafter.draft(count, lambda row, at: choose(row.cpu().numpy(), at, sampling))
        if corrupt is not None:
            drafts = corrupt(drafts, trace.drafts.steps)
        before = len(trace.tokens)
        states = (_verify_fast if mode == "fast" else _verify_serial)(model, cache, drafts, writer)
        behind = trace.tokens[before:]
        trace.drafts.add(len(drafts), len(behind) - 1)
        writer.stream(behind)
    trace.decode_seconds = time.perf_counter() - started
    return trace


def _verify_fast(model: Model, cache: Cache, drafts: list[int], writer: _Writer) -> States:
    """Read the last token and all drafts in one pass; emit; forget what was rejected. States of what is kept."""
    before = cache.length
    cache.start()
    states = model.trunk.forward([writer.trace.tokens[-1], *drafts], cache)
    logits = model.trunk.logits(states)
    kept = 0
    for row in range(len(drafts) + 1):
        token = writer.emit(logits[row])
        kept += 1
        if writer.done or row == len(drafts) or token != drafts[row]:
            break
    cache.rollback(before + kept)
    return states.part(0, kept)


def _verify_serial(model: Model, cache: Cache, drafts: list[int], writer: _Writer) -> States:
    """Read one token at a time for as long as the drafts are right. Nothing is ever rolled back."""
    parts = []
    for row in range(len(drafts) + 1):
        parts.append(model.trunk.forward(writer.trace.tokens[-1:], cache))
        token = writer.emit(model.trunk.logits(parts[-1])[0])
        if writer.done or row == len(drafts) or token != drafts[row]:
            break
    return States.joined(parts)
