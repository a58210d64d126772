"""Heads tried one after the other on one trunk: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mtptools.checkpoint import Checkpoint
from mtptools.decoder.load import with_head
from mtptools.decoder.model import Model
from mtptools.decoder.report import digest_prompts, fingerprint
from mtptools.decoder.sweep import measure_head, plain_traces
from mtptools.errors import MtpToolsError
from mtptools.ops.roofline import traffic
from mtptools.plan import Plan
from mtptools.preview import preview
from mtptools.report.choice import AS_IT_IS, Row, Sweep, Tried, label_of

__all__ = ["Wanted", "try_heads"]

Wanted = Mapping[tuple[str, bool], Plan | MtpToolsError]
"""(type, weighted by importance) to the plan that quantizes the head so, or to why there is none."""


def try_heads(
    ckpt: Checkpoint,
    model: Model,
    prompts: Sequence[Sequence[int]],
    wanted: Wanted,
    *,
    k: int,
    n_tokens: int,
    tolerance: float,
    progress: Callable[[str], None],
) -> Sweep:
    """Decode once, then draft with the head as it is and with every other; one head is held at a time.

    prompts    token ids
    tolerance  share of the mean length that a smaller head may lose

    A type that fails is a row that says why. Raises what decoding raises, and the first reason when every type fails.
    """
    traces = plain_traces(model, prompts, n_tokens, progress)
    emitted = [trace.tokens for trace in traces]
    distinct = sum(len(set(tokens)) for tokens in emitted) / sum(map(len, emitted))
    sweep = Sweep(ckpt.path.name, k, n_tokens, len(prompts), tolerance, distinct)
    sweep.fingerprint, sweep.prompts_digest = fingerprint(model), digest_prompts(prompts)
    progress(AS_IT_IS)
    own = Tried(AS_IT_IS, False, traffic(ckpt), measure_head(model.require_head(), traces, k))
    sweep.rows.append(Row(own.label, own))
    failed: list[MtpToolsError] = []
    for (kind, weighted), plan in wanted.items():
        label = label_of(kind, weighted)
        progress(label)
        if isinstance(plan, MtpToolsError):
            sweep.rows.append(Row(label, why=str(plan)))
            continue
        planned = preview(plan, ckpt)
        try:
            head = with_head(model, planned).require_head()
            sweep.rows.append(Row(label, Tried(kind, weighted, traffic(planned), measure_head(head, traces, k))))
        except MtpToolsError as error:  # found out by encoding, or by what came of it
            failed.append(error.with_traceback(None))  # which would hold on to the head
            sweep.rows.append(Row(label, why=str(error)))
        finally:
            # What is found out about checkpoints is cached by them: the last few stay, but not a head's bytes.
            planned.tensors.clear()
    if len(sweep.tried) == 1:
        raise failed[0]
    return sweep
