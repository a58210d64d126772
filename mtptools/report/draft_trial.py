"""A draft vocabulary tried out: acceptance and speed of a head before and after it is reduced.

The trunk writes a text after every prompt, once; the whole head and the reduced one draft against it (`measure_head`).
Coverage does not decide: a token outside of the vocabulary costs what the head would have got right of it, and all
drafts after it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np

from mtptools.decoder.draft_speed import RUNS, Speed, time_heads
from mtptools.decoder.load import with_vocabulary
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.report import digest_prompts, fingerprint
from mtptools.decoder.sweep import Measured, freedom, measure_head, plain_traces, rate_difference_error
from mtptools.decoder.trace import Trace
from mtptools.errors import UsageError
from mtptools.ops.roofline import Traffic
from mtptools.report.chance import t_quantile
from mtptools.report.choice import LEVEL
from mtptools.vocab.maps import DraftVocabulary

__all__ = ["DomainTrial", "DraftTrial", "Texts", "gain_model", "generated", "try_vocabulary", "write_texts"]

TIMED: Final = 4
"""Prompts that are timed: the first of each domain, then the second …"""

Texts = Mapping[str, Sequence[Trace]]
"""Domain to what the trunk wrote there, with its states."""
Progress = Callable[[str], None]


@dataclass(frozen=True)
class DomainTrial:
    """One domain, or all of them together.

    before, after  the whole head, and the reduced one, on the same texts
    outside        of `tokens` that were to be drafted (all that the trunk emitted but a text's first), those that are
                   not in the vocabulary
    """

    name: str
    before: Measured
    after: Measured
    tokens: int
    outside: int

    @property
    def loss(self) -> float:
        """Points (hundredths) of the rate: accepted drafts by all drafts. Negative for a gain, by chance."""
        return 100 * (self.before.acceptance.rate - self.after.acceptance.rate)

    @property
    def outside_share(self) -> float:
        return self.outside / self.tokens

    @property
    def position_losses(self) -> tuple[float, ...]:
        """Points of the acceptance at each draft position."""
        pairs = zip(self.before.acceptance.per_position, self.after.acceptance.per_position, strict=True)
        return tuple(100 * (before - after) for before, after in pairs)

    @property
    def worst(self) -> tuple[int, float]:
        """(position from 1, points) of the position that loses most."""
        losses = self.position_losses
        at = int(np.argmax(losses))
        return at + 1, losses[at]

    @property
    def error(self) -> float:
        """Standard error of `loss`, in points; infinite where it is not known.

        Taken prompt by prompt where there are enough, see `decoder.sweep.difference_error`.
        """
        return 100 * rate_difference_error(self.after, self.before)

    def unclear(self, max_loss: float) -> bool:
        """Could the loss be on the other side of `max_loss` by chance, in LEVEL of cases?"""
        return abs(self.loss - max_loss) <= t_quantile(freedom(self.before, self.after), LEVEL) * self.error


@dataclass(frozen=True)
class DraftTrial:
    """domains in the order of asking;  distinct  different tokens by emitted ones: a text that loops measures little
    reads    what the model reads with the whole head and the reduced one, for the modelled gain: the caller's
    spared   domains that are measured and not judged: those of weight 0
    """

    path: str
    vocabulary: DraftVocabulary
    k: int
    n_tokens: int
    domains: tuple[DomainTrial, ...]
    distinct: float
    speed: Speed | None = None
    reads: tuple[Traffic, Traffic] | None = None
    fingerprint: dict[str, Any] = field(default_factory=dict)
    prompts_digest: str = ""
    spared: frozenset[str] = frozenset()

    @cached_property
    def whole(self) -> DomainTrial:
        """All domains as one."""

        def joined(some: Sequence[Measured]) -> Measured:
            return Measured(self.k, tuple(count for one in some for count in one.counts))

        before, after = ([getattr(one, arm) for one in self.domains] for arm in ("before", "after"))
        tokens, outside = (sum(getattr(one, what) for one in self.domains) for what in ("tokens", "outside"))
        return DomainTrial("all", joined(before), joined(after), tokens, outside)

    def failed(self, max_loss: float) -> list[str]:
        """Domains whose rate loses more than so many points, as measured."""
        return [one.name for one in self.domains if one.loss > max_loss + 1e-9 and one.name not in self.spared]

    def gain(self, one: DomainTrial) -> float | None:
        """Of a domain, by the model of bytes read; None where these are not known."""
        if self.reads is None:
            return None
        return gain_model(*self.reads, one.before.mean_length, one.after.mean_length, self.k)


def gain_model(
    traffic_before: Traffic, traffic_after: Traffic, length_before: float, length_after: float, k: int
) -> float:
    """Tokens a second with the reduced head by those with the whole one: a model, see `ops.roofline`.

    Bytes of a step (k drafts and the pass that verifies them) by tokens that it emits, the one by the other.
    """
    return traffic_after.speedup(length_after, k) / traffic_before.speedup(length_before, k)


def write_texts(
    model: Model,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    n_tokens: int,
    progress: Progress | None = None,
    *,
    stop: Collection[int] = (),
) -> Texts:
    """The trunk's own greedy text after every prompt, for counting its tokens (`generated`) and for `try_vocabulary`.

    A vocabulary that was made from a text loses least on that text: measure on prompts that it was not made from.

    prompts  domain -> prompts as token ids;  stop  token ids that end a text

    Raises UsageError for what cannot be decoded.
    """
    say = progress or (lambda _: None)

    def of(domain: str) -> Progress:
        return lambda what: say(f"{domain}: {what}")

    return {domain: plain_traces(model, some, n_tokens, of(domain), stop=stop) for domain, some in prompts.items()}


def generated(traces: Sequence[Trace]) -> list[list[int]]:
    """The tokens that the trunk emitted, without the prompts'; a stop token that ended a text is one of them."""
    return [list(trace.tokens) for trace in traces]


def try_vocabulary(
    model: Model,
    texts: Texts,
    vocabulary: DraftVocabulary,
    *,
    k: int,
    runs: int = RUNS,
    reduced: Head | None = None,
    progress: Progress | None = None,
) -> DraftTrial:
    """Draft against the trunk's texts with the model's head, and with the same head over `vocabulary`.

    texts    of `write_texts`
    runs     of every timing, 0 for none
    reduced  that head as a file has it (`decoder.load.with_head`); None: it is reduced in memory, to the same values
             but where its rows cannot be kept as they are stored

    Raises MissingHeadError, InputError (the head cannot be reduced so), UsageError (nothing to measure).
    """
    say = progress or (lambda _: None)
    traces = [trace for some in texts.values() for trace in some]
    if not traces or k < 1:
        raise UsageError("a trial needs a prompt, and a k of at least 1", hint="--k 3")
    heads = model.require_head(), reduced or with_vocabulary(model, vocabulary).require_head()
    after = heads[1].recording() if heads[0].replays else heads[1]  # or launches would be timed against none
    timed = _timed(texts) if runs else []
    domains = []
    for name, some in texts.items():
        say(f"{name}: drafts over {len(vocabulary)} tokens")
        domains.append(_tried(heads, name, some, vocabulary, k))
    emitted = [trace.tokens for trace in traces]
    return DraftTrial(
        Path(str(model.where)).name,
        vocabulary,
        k,
        max(trace.requested for trace in traces),
        tuple(domains),
        sum(len(set(tokens)) for tokens in emitted) / sum(map(len, emitted)),
        time_heads((model, model.with_head(after)), timed, k=k, runs=runs, progress=say) if timed else None,
        fingerprint=fingerprint(model),
        prompts_digest=digest_prompts([trace.prompt for trace in traces]),
    )


def _tried(
    heads: tuple[Head, Head], name: str, traces: Sequence[Trace], vocabulary: DraftVocabulary, k: int
) -> DomainTrial:
    before, after = (measure_head(head, traces, k) for head in heads)
    if not sum(before.acceptance.drafted):
        raise UsageError(f"the texts of {name} end before anything is drafted", hint="other prompts, or more --tokens")
    wanted = np.concatenate([np.array(trace.tokens[1:], dtype=np.int64) for trace in traces])
    return DomainTrial(name, before, after, len(wanted), int((~vocabulary.mask[wanted]).sum()))


def _timed(texts: Texts) -> list[Trace]:
    """TIMED of the texts, of all domains in turn; what ended at once takes no time."""
    turns = [trace for turn in zip_longest(*texts.values()) for trace in turn if trace is not None]
    return [trace for trace in turns if len(trace.tokens) > 2][:TIMED]
