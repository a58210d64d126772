"""What drafting gains: acceptance, tokens and seconds per k, against plain decoding of the same prompts.

Every arm (plain, and each k) decodes a prompt several times, in rotation, so that a machine that slows down hurts all
of them alike; an arm's time for a prompt is the median. Every run's logits are compared with those of the first plain
one, bit for bit, outside the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from mtptools.decoder.acceptance import Acceptance, total
from mtptools.decoder.model import Model
from mtptools.decoder.parity import Parity, compare
from mtptools.decoder.report import digest_prompts, fingerprint
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trace import DraftCounts, Trace
from mtptools.errors import UsageError

__all__ = ["DEFAULT_RUNS", "PLAIN", "Bench", "Gain", "PromptTimes", "bench_model", "check_context"]

DEFAULT_RUNS: Final = 3
PLAIN: Final = 0
"""The k of the plain arm."""

Progress = Callable[[str], None]


@dataclass
class PromptTimes:
    """One prompt: what came out, and per k (0 is plain) the seconds of every run, counts of drafts.

    reading  seconds of the prompt's pass; not part of `seconds`, which are those of every token after the first
    """

    prompt: list[int]
    category: str = ""
    tokens: list[int] = field(default_factory=list)
    seconds: dict[int, list[float]] = field(default_factory=dict)
    reading: dict[int, list[float]] = field(default_factory=dict)
    drafts: dict[int, DraftCounts] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        arms = [
            {
                "k": k,
                "seconds": seconds,
                "prompt_seconds": self.reading[k],
                **(total(k, [self.drafts[k]]).to_json() if k in self.drafts else {}),
            }
            for k, seconds in self.seconds.items()
        ]
        return {
            "category": self.category,
            "prompt_tokens": len(self.prompt),
            "prompt_digest": digest_prompts([self.prompt]),
            "emitted": self.tokens,
            "arms": arms,
        }


@dataclass(frozen=True, slots=True)
class Gain:
    """One k over some prompts.

    speedup  tokens a second by those of plain decoding; `least` and `most` of single runs
    cost     seconds of a step (k drafts and the pass that verifies them) by those of a plain token
    """

    acceptance: Acceptance
    tokens_per_second: float
    speedup: float
    least: float
    most: float
    cost: float

    @property
    def k(self) -> int:
        return self.acceptance.k

    def to_json(self) -> dict[str, Any]:
        return {
            **self.acceptance.to_json(),
            "tokens_per_second": self.tokens_per_second,
            "speedup": self.speedup,
            "speedup_of_runs": [self.least, self.most],
            "step_cost": self.cost,
        }


@dataclass
class Bench:
    """prompts in order; parity has one entry per run that was compared, the plain ones but the first included."""

    ks: tuple[int, ...]
    n_tokens: int
    runs: int
    prompts: list[PromptTimes] = field(default_factory=list)
    parity: list[Parity] = field(default_factory=list)
    fingerprint: dict[str, Any] = field(default_factory=dict)

    @property
    def parity_ok(self) -> bool:
        return all(result.equal for result in self.parity)

    @property
    def categories(self) -> list[str]:
        """Of the prompts, in the order of their first one; empty when they are all of one."""
        found = list(dict.fromkeys(one.category for one in self.prompts))
        return found if len(found) > 1 else []

    def of(self, category: str | None = None) -> list[PromptTimes]:
        return [one for one in self.prompts if category is None or one.category == category]

    def plain_tokens_per_second(self, category: str | None = None) -> float:
        return _rate(self.of(category), PLAIN)

    def gain(self, k: int, category: str | None = None) -> Gain:
        """All prompts, or those of one category, at one k."""
        some = self.of(category)
        plain, ours = _rate(some, PLAIN), _rate(some, k)
        acceptance = total(k, [one.drafts[k] for one in some])
        by_run = [
            sum(one.seconds[PLAIN][run] for one in some) / sum(one.seconds[k][run] for one in some)
            for run in range(self.runs)
        ]
        speedup = ours / plain
        # A step emits mean_length tokens and takes as long as so many plain tokens divided by the speedup.
        cost = acceptance.mean_length / speedup
        return Gain(acceptance, ours, speedup, min(by_run), max(by_run), cost)

    def gains(self, category: str | None = None) -> list[Gain]:
        return [self.gain(k, category) for k in self.ks]

    def best(self, category: str | None = None) -> Gain | None:
        """The fastest k of those measured; None where plain decoding is as fast as any."""
        fastest = max(self.gains(category), key=lambda gain: gain.speedup)
        return fastest if fastest.speedup > 1 else None

    def to_json(self) -> dict[str, Any]:
        def part(category: str | None) -> dict[str, Any]:
            some, best = self.of(category), self.best(category)
            return {
                "prompts": len(some),
                "plain_tokens_per_second": self.plain_tokens_per_second(category),
                "acceptance": [gain.to_json() for gain in self.gains(category)],
                "best_k": best.k if best is not None else 0,
            }

        return {
            "tokens": self.n_tokens,
            "k": list(self.ks),
            "runs": self.runs,
            "prompts_digest": digest_prompts([one.prompt for one in self.prompts]),
            "prompt_tokens": sum(len(one.prompt) for one in self.prompts),
            "parity": {"equal": self.parity_ok, "arms": [result.to_json() for result in self.parity]},
            **part(None),
            "categories": {category: part(category) for category in self.categories},
            "per_prompt": [one.to_json() for one in self.prompts],
            "fingerprint": self.fingerprint,
        }


def _rate(prompts: Sequence[PromptTimes], k: int) -> float:
    """Tokens after the first by the seconds they took, medians over runs."""
    return sum(len(one.tokens) - 1 for one in prompts) / sum(median(one.seconds[k]) for one in prompts)


def bench_model(
    model: Model,
    prompts: Sequence[Sequence[int]],
    categories: Sequence[str],
    ks: Sequence[int],
    n_tokens: int,
    *,
    runs: int = DEFAULT_RUNS,
    progress: Progress | None = None,
) -> Bench:
    """Decode every prompt greedily, plainly and with every k, `runs` times each.

    prompts     token ids, one list a prompt;  categories  one a prompt
    n_tokens    emitted after each

    Raises MissingHeadError, and UsageError for what cannot be decoded, before anything is.
    """
    model.require_head()
    if not prompts or not ks or min(ks) < 1 or n_tokens < 2 or runs < 1:
        raise UsageError("bench needs a prompt, a k of at least 1 and 2 tokens", hint="--k 1..8 --tokens 64")
    check_context(model.hparams.context_length, prompts, categories, n_tokens)
    say = progress or (lambda _: None)
    bench = Bench(tuple(sorted(set(ks))), n_tokens, runs, fingerprint=fingerprint(model))
    arms = [PLAIN, *bench.ks]
    say("warm-up")
    for k in arms:
        _decode(model, prompts[0], min(n_tokens, 2 * k + 4), k)
    for number, (ids, category) in enumerate(zip(prompts, categories, strict=True)):
        one = PromptTimes(list(ids), category, seconds={k: [] for k in arms}, reading={k: [] for k in arms})
        plain: Trace | None = None
        for run in range(runs):
            # The first run starts with the plain arm, what the others are compared with; later ones elsewhere.
            turn = run * len(arms) // runs
            for k in arms[turn:] + arms[:turn]:
                label = f"prompt {number + 1}, {f'k={k}' if k else 'plain'}, run {run + 1}"
                say(f"{label} of {runs}; {len(prompts)} prompts")
                trace = _decode(model, ids, n_tokens, k)
                one.seconds[k].append(trace.decode_seconds)
                one.reading[k].append(trace.prefill_seconds)
                if k:
                    one.drafts[k] = trace.drafts
                if plain is None:
                    plain, one.tokens = trace, trace.tokens
                else:
                    bench.parity.append(compare(plain, trace, label))
        bench.prompts.append(one)
    return bench


def _decode(model: Model, ids: Sequence[int], n: int, k: int) -> Trace:
    return decode_speculative(model, ids, n, k) if k else decode_plain(model, ids, n)


def check_context(context: int, prompts: Sequence[Sequence[int]], categories: Sequence[str], n_tokens: int) -> None:
    """A prompt that does not fit is said now, not after the minutes that those before it take. Raises UsageError.

    context  the model's, in tokens; 0 where it states none
    """
    for number, (ids, category) in enumerate(zip(prompts, categories, strict=True), 1):
        if context and len(ids) + n_tokens > context:
            raise UsageError(
                f"prompt {number}{f' ({category})' if category else ''} is {len(ids)} tokens long; with {n_tokens} "
                f"more it does not fit the model's context of {context}",
                hint="leave it out of the prompts, or fewer --tokens",
            )
