"""Plain decoding against speculative decoding of one model, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.forced_drafts import Forced
from mtptools.decoder.model import Model
from mtptools.decoder.parity import compare
from mtptools.decoder.sampling import GREEDY, Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative

__all__ = ["KS", "SAMPLINGS", "speculative_is_plain"]

KS = (1, 2, 3, 5, 8)
SAMPLINGS = (GREEDY, Sampling(temperature=0.8, top_k=40, top_p=0.95, seed=1))
RIGHT, SEED = 0.6, 10
"""With two drafts the first is right and the second wrong: enough for a text of four tokens."""


def speculative_is_plain(
    model: Model,
    prompt: Sequence[int],
    n: int,
    ks: Sequence[int] = KS,
    samplings: Sequence[Sampling] = SAMPLINGS,
    modes: Sequence[str] = ("fast", "serial"),
) -> int:
    """The logits of n tokens by every arm; number of arms. Raises AssertionError that names the first that differs.

    There is one more arm, whose drafts are right at a rate: however well the head drafts, some pass is rolled back.
    """
    arms, accepted, refused = 0, 0, 0
    vocab = model.trunk.embed.shape[0]
    for sampling in samplings:
        plain = decode_plain(model, prompt, n, sampling=sampling)
        for k in ks:
            forced = Forced(plain.tokens, RIGHT, vocab, seed=SEED + k)
            options = [{"mode": mode} for mode in modes]
            options.append({"mode": "fast", "corrupt": forced.corrupt, "on_tokens": forced.on_tokens})
            for option in options:
                trace = decode_speculative(model, prompt, n, k, sampling=sampling, **option)  # type: ignore[arg-type]
                found = compare(plain, trace, f"k={k}, {sampling}, {option['mode']}")
                assert found.equal, found
                arms += 1
                accepted += sum(trace.drafts.accepted)
                refused += sum(trace.drafts.drafted) - sum(trace.drafts.accepted)
    assert accepted, "no draft was ever accepted"
    assert refused, "no draft was ever refused"
    return arms
