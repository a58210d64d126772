"""`verify --stream`: one pass over one checkpoint, or over two side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mtptools.decoder.acceptance import Acceptance, total
from mtptools.decoder.best import Best, best
from mtptools.decoder.controls import Control, ControlResult, diagnose, late, try_controls
from mtptools.decoder.memory import DTYPES
from mtptools.decoder.mtp_head import Head
from mtptools.decoder.report import surroundings
from mtptools.decoder.stream.head_pass import Drafts, drafted
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.outline import same_bytes
from mtptools.decoder.stream.passages import Passages
from mtptools.decoder.stream.rates import Rates, rates, walked
from mtptools.decoder.stream.report import Compared, StreamReport, TrunkFacts
from mtptools.decoder.stream.states import StateFolder
from mtptools.decoder.trunk import States
from mtptools.errors import IncompatibleError, InputError, UsageError
from mtptools.threshold import LEAST

__all__ = ["CONTROL_ROWS", "Progress", "stream", "stream_layers"]

CONTROL_ROWS: Final = 512
"""Positions on which controls are tried: each is one more pass over the head."""

Progress = Callable[[int, int, str], None]
"""(bytes done, bytes of all, what is being done)."""

Tokens = NDArray[np.int64]


def _nothing(done: int, total: int, what: str) -> None:
    pass


def _silent(text: str) -> None:
    pass


def stream_layers(
    model: Streamed,
    first: int,
    stop: int,
    folder: Path | None,
    progress: Progress = _nothing,
    tell: Callable[[str], None] = _silent,
) -> range:
    """The layers from `first` to `stop` (not with it) that were left to do: what the folder has is not done again.

    tell  is told when it goes on from states that were kept

    Raises UsageError for layers that there are not, InputError when states to begin with are not there.
    """
    if not 0 <= first < stop <= model.n_layers:
        raise UsageError(
            f"layers {first}:{stop} of a model of {model.n_layers}",
            where="--layers",
            hint=f"--layers 0:{model.n_layers}",
        )
    known = None if folder is None else StateFolder(folder, model.run())
    begun = None if known is None else known.last(first, stop)
    if known is not None and begun is not None:
        if begun:
            model.keep_states(known.load(begun), begun)
            tell(f"going on after layer {begun} of {model.n_layers}")
    elif first:
        raise InputError(
            f"there are no states after {first} layer{'s' * (first != 1)}",
            where=folder,
            hint=f"run --layers 0:{first} with the same --state first",
        )
    if not begun:
        progress(0, model.outline.nbytes, "embedding")
        model.begin()
    start, every = model.done, model.outline.nbytes
    read = sum(stage.nbytes for stage in model.outline.layers[:start])
    with model.at_work():
        for n in range(start, stop):
            progress(read, every, f"layer {n + 1} of {model.n_layers}")
            model.layer(last=n + 1 == stop)
            read += model.outline.layers[n].nbytes
            if known is not None:
                known.save(n + 1, model.states, first)
    return range(start, stop)


def stream(
    model: Streamed,
    k: int,
    *,
    other: Streamed | None = None,
    folder: Path | None = None,
    controls: bool = True,
    progress: Progress = _nothing,
    tell: Callable[[str], None] = _silent,
) -> StreamReport:
    """The whole pass.

    k      drafts of each position that are tried
    other  another checkpoint for the same tokens: a layer whose bytes are the same and which reads the same states is
           computed once
    folder keeps states between layers; with what it has already nothing is done twice
    tell   is told when it goes on from such states

    Raises what `load_model` raises, and CorruptError where states stop being finite.
    """
    started = time.perf_counter()
    drift: list[float] = []
    shared = 0
    models = [model] if other is None else [model, other]
    with ExitStack() as work:
        for one in models:
            work.enter_context(one.at_work())
        if other is None:
            done = stream_layers(model, 0, model.n_layers, folder, progress, tell)
        else:
            done = range(model.n_layers)
            shared = _side_by_side(model, other, drift, progress)
        every = sum(one.outline.nbytes for one in models)
        read = every - sum(stage.nbytes for stage in model.outline.layers[: done.start])
        last = sum(one.outline.ends.nbytes + one.outline.head.nbytes for one in models)
        progress(every - last, every, "output matrix and head")
        report = _finished(model, k, controls, None if other is None else (other, shared, drift))
    report.layers, report.n_layers, report.nbytes = done, model.n_layers, read
    report.seconds = time.perf_counter() - started
    return report


def _side_by_side(a: Streamed, b: Streamed, drift: list[float], progress: Progress) -> int:
    """Both trunks, layer by layer; how many of the first layers were the same."""
    _require_alike(a, b)
    if a.helpers is not None and b.helpers is not None:
        b.helpers.share(a.helpers)
    a.begin()
    together = a.computed == b.computed and same_bytes(a.outline.ends, b.outline.ends)
    shared = 0
    if not together:
        b.begin()
    nbytes = a.outline.nbytes + b.outline.nbytes
    read = 0
    for n, (ours, theirs) in enumerate(zip(a.outline.layers, b.outline.layers, strict=True)):
        progress(read, nbytes, f"layer {n + 1} of {a.n_layers}")
        if together and not same_bytes(ours, theirs):
            together = False
            b.keep_states(a.states.clone(), n)
        last = n + 1 == a.n_layers
        a.layer(last=last)
        if together:
            shared += 1
        else:
            b.layer(last=last)
        drift.append(0.0 if together else _drift(a.states, b.states))
        read += ours.nbytes + theirs.nbytes
    if together:
        b.keep_states(a.states, a.done)
    return shared


def _require_alike(a: Streamed, b: Streamed) -> None:
    """Raises IncompatibleError where two checkpoints cannot be read side by side."""
    for what, ours, theirs in (
        ("layers", a.n_layers, b.n_layers),
        ("hidden size", a.ckpt.hparams.hidden_size, b.ckpt.hparams.hidden_size),
        ("streams", a.trunk.streams, b.trunk.streams),
        ("vocabulary", a.trunk.output.shape[0], b.trunk.output.shape[0]),
    ):
        if ours != theirs:
            raise IncompatibleError(
                f"{what}: {ours} against {theirs}",
                [f"{what}: {ours}, {theirs}"],
                where=b.ckpt.path,
                hint="compare files of one model",
            )


def _drift(a: Tensor, b: Tensor) -> float:
    """Root mean square of b - a by that of a."""
    return float(((b - a).double().square().mean() / a.double().square().mean()).sqrt())


@torch.inference_mode()
def _finished(model: Streamed, k: int, controls: bool, pair: tuple[Streamed, int, list[float]] | None) -> StreamReport:
    """What follows from the states after the last layer. All rows of one output matrix pass it together."""
    passages, ops = model.passages, model.arithmetic
    ended, head = model.ended(), model.head()
    made = [] if head is None else drafted(head, ended.tap(head.wiring.tap), passages, k)
    few = passages.beginning(CONTROL_ROWS)
    tried = _tried(head, ended, passages, few) if head is not None and controls else {}
    every = [*made, *tried.values()]
    wanted = [token for passage in passages.all for token in (*passage.ids[1:], passage.ids[0])]
    if pair is None:
        alike = [one for one in every if head is not None and head.layers[one.layer].output is model.trunk.output]
        rows = [part for one in alike for part in one.states]
        both = best(ops, torch.cat([ended.post, *rows]), model.trunk.output, wanted)
        found, first = both.part(0, len(wanted)), both.first[len(wanted) :]
    else:
        found = best(ops, ended.post, model.trunk.output, wanted, (pair[0].ended().post, pair[0].trunk.output))
        first = None
    counted = _counted(passages)
    chosen = found.first.cpu().numpy()
    report = StreamReport(
        passages=len(passages.all),
        positions=passages.n_rows,
        text_digest=passages.digest(),
        trunk=_trunk_facts(found, chosen, wanted, counted),
        rates=None,
        fingerprint=_fingerprint(model),
    )
    if head is not None:
        tokens = _tokens(head, every, None if first is None else {id(model.trunk.output): first})
        drafts = tokens[: len(made)]
        report.rates = _rates(passages, chosen, drafts)
        report.walked = _walked(passages, chosen, drafts, k)
        report.own_text = bool(report.walked)
        if controls:
            found_by = dict(zip(tried, tokens[len(made) :], strict=True))
            report.controls, report.control_rows = _judged(head, passages, few, found_by, chosen), few.n_rows
            report.diagnosis = diagnose(report.controls) if report.rates.tried[0] >= LEAST else None
    head = None  # its matrices are let go: the other's are there next
    if pair is not None:
        report.compared = _compared(found, chosen, counted, wanted, k, pair)
    return report


def _counted(passages: Passages) -> NDArray[np.bool_]:
    """Per row: is its next token one that counts?"""
    out = np.zeros(passages.n_rows, dtype=np.bool_)
    for passage, first, stop in passages.bounds():
        out[first + passage.start - 1 : stop - 1] = True
    return out


def _trunk_facts(found: Best, chosen: Tokens, wanted: Sequence[int], counted: NDArray[np.bool_]) -> TrunkFacts:
    agreed = (chosen == np.array(wanted))[counted]
    return TrunkFacts.of(agreed, found.log_likelihood.cpu().numpy()[counted], found.margin.cpu().numpy()[counted])


def _tokens(head: Head, drafts: Sequence[Drafts], known: Mapping[int, Tensor] | None = None) -> list[list[Tokens]]:
    """Per draft, per passage: the token of every slot. Drafts of one output matrix pass it together.

    known  by output matrix, what its best rows were found to be already
    """
    out: list[list[Tokens]] = [[] for _ in drafts]
    matrices = {id(head.layers[one.layer].output): head.layers[one.layer] for one in drafts}
    for key, layer in matrices.items():
        mine = [(n, one) for n, one in enumerate(drafts) if id(head.layers[one.layer].output) == key]
        if known is not None and key in known:
            first = known[key]
        else:
            first = best(head.arithmetic, torch.cat([p for _, one in mine for p in one.states]), layer.output, []).first
        tokens = first if layer.d2t is None else layer.d2t[first]
        at = 0
        for n, one in mine:
            for part in one.states:
                out[n].append(tokens[at : at + len(part)].cpu().numpy())
                at += len(part)
    return out


def _rates(passages: Passages, chosen: Tokens, drafts: Sequence[Sequence[Tokens]]) -> Rates:
    tried, right = np.zeros(len(drafts), dtype=np.int64), np.zeros(len(drafts), dtype=np.int64)
    for number, (passage, first, stop) in enumerate(passages.bounds()):
        t, r = rates(np.array(passage.ids), passage.start, chosen[first:stop], [one[number] for one in drafts])
        tried += t
        right += r
    return Rates(tuple(tried.tolist()), tuple(right.tolist()))


def _walked(passages: Passages, chosen: Tokens, drafts: Sequence[Sequence[Tokens]], k: int) -> list[Acceptance]:
    """Per k up to the given one, what the loop counts; none where the text is not the model's own."""
    out = []
    for length in range(1, k + 1):
        counts = [
            walked(np.array(passage.ids), passage.start, chosen[first:stop], [one[n] for one in drafts], length)
            for n, (passage, first, stop) in enumerate(passages.bounds())
        ]
        known = [one for one in counts if one is not None]
        if len(known) != len(counts):
            return []
        out.append(total(length, known))
    return out


def _starts(passages: Passages, few: Passages) -> list[int]:
    """The first row of each of the first passages; one that is cut is the last."""
    return [first for _, first, _ in passages.bounds()][: len(few.all)]


def _tried(head: Head, ended: States, passages: Passages, few: Passages) -> dict[_Key, Drafts]:
    """What every control drafts on the first rows."""
    made: dict[_Key, Drafts] = {}

    def read(plain: Head, control: Control) -> NDArray[np.bool_]:
        faulty = control.change(plain)
        tapped = ended.tap(faulty.wiring.tap)
        places = zip(_starts(passages, few), few.all, strict=True)
        rows = [tapped[at : at + len(passage.ids)] for at, passage in places]
        entering = torch.cat([late(part) for part in rows] if control.late_state else rows)
        made[_key(control)] = drafted(faulty, entering, few, control.draft, late=control.late_token)[-1]
        return np.ones(1, dtype=np.bool_)  # judged later: all of them pass the output matrix together

    try_controls(head, read)
    return made


_Key = tuple[str, int]


def _key(control: Control) -> _Key:
    return control.name, control.draft


def _judged(
    head: Head, passages: Passages, few: Passages, tokens: Mapping[_Key, Sequence[Tokens]], chosen: Tokens
) -> list[ControlResult]:
    """Every control, by the tokens that it drafted. A draft is right when it is the trunk's choice."""

    def hits(plain: Head, control: Control) -> NDArray[np.bool_]:
        found = []
        for passage, at, mine in zip(few.all, _starts(passages, few), tokens[_key(control)], strict=True):
            right = mine == chosen[at + control.draft : at + control.draft + len(mine)]
            found.append(right[max(passage.start - control.draft, 0) :])
        return np.concatenate(found)

    return try_controls(head, hits)


def _compared(
    found: Best,
    chosen: Tokens,
    counted: NDArray[np.bool_],
    wanted: Sequence[int],
    k: int,
    pair: tuple[Streamed, int, list[float]],
) -> Compared:
    """The other checkpoint, judged on the same positions."""
    model, shared, drift = pair
    ended, head = model.ended(), model.head()
    theirs = best(model.arithmetic, ended.post, model.trunk.output, wanted)
    others = theirs.first.cpu().numpy()
    drafts = None if head is None else _tokens(head, drafted(head, ended.tap(head.wiring.tap), model.passages, k))
    margin = found.margin.cpu().numpy()
    flipped = (chosen != others)[counted]
    flips = margin[counted][flipped]
    divergence = found.divergence.cpu().numpy()[counted]
    return Compared(
        (model.head_ckpt or model.ckpt).path.name,
        shared,
        tuple(drift),
        int(flipped.sum()),
        float(np.median(flips)) if flips.size else 0.0,
        float(flips.max()) if flips.size else 0.0,
        float(divergence.mean()),
        float(divergence.max()),
        _trunk_facts(theirs, others, wanted, counted),
        None if drafts is None else _rates(model.passages, others, drafts),
    )


def _fingerprint(model: Streamed) -> dict[str, Any]:
    held = "resident" if model.packed else "read layer by layer"
    return surroundings(model.arithmetic, DTYPES[model.dtype], {held})
