"""Every draft of every position at once is what `Drafter` makes of the text, slot by slot."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.checkpoint import Checkpoint, open_checkpoint
from mtptools.decoder.acceptance import Acceptance, simulate, total
from mtptools.decoder.controls import of_traces, try_controls
from mtptools.decoder.load import load_model, with_head
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import RECURRENCES, Head
from mtptools.decoder.stream import run
from mtptools.decoder.stream.head_pass import drafted
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.run import _tokens, stream
from mtptools.decoder.trace import Trace
from mtptools.decoder.trunk import States
from tests.decoder import reduced_heads, toy
from tests.decoder.stream.given import (
    TRAINED,
    drafter_logits,
    head_of,
    opened,
    ordinary,
    own_texts,
    read,
    short,
    streamed,
    through,
)

K = 4
CLOSE = 2e-4
"""Logits: a branch's own keys are added to a softmax one by one, and not within their chunk."""

PLACES = (
    *(f"{name}/hf" for name in TRAINED),
    *(f"{name}/gguf/trunk-Q4_K.gguf" for name in TRAINED[:2]),
)


@torch.inference_mode()
def compare(one: Streamed, ended: States, head: Head, model: Model, k: int = K) -> int:
    """Logits of drafts of a pass, and of `Drafter` with the model's head; how many there were.

    Where three layers take turns, the third one's first two slots see nothing of the text: `attend` says that such rows
    mean nothing.
    """
    made = drafted(head, ended.tap(head.wiring.tap), one.passages, k)
    tokens = _tokens(head, made)
    turns = head.wiring.recurrence == "cycle" and head.depth > 2
    count = 0
    for n, (passage, _, _) in enumerate(one.passages.bounds()):
        wanted = drafter_logits(model.require_head(), read(model, passage), passage.ids, k)
        for step, (drafts, by_slot) in enumerate(zip(made, wanted, strict=True)):
            assert len(drafts.states[n]) == len(tokens[step][n]) == max(len(passage.ids) - 1 - step, 0)
            slots = [slot for slot in by_slot if not (turns and step > 1 and slot < 2)]
            if not slots:
                continue
            rows = torch.stack([by_slot[slot] for slot in slots])
            logits = head.logits(drafts.states[n][slots], drafts.layer)
            torch.testing.assert_close(logits, rows, rtol=0, atol=0 if step == 0 else CLOSE)  # a first one: its bits
            top = rows.topk(2).values
            near = top[:, 0] - top[:, 1] < 2 * CLOSE
            assert ((torch.from_numpy(tokens[step][n][slots]) == rows.argmax(-1)) | near).all()
            count += len(slots)
    return count


def wired(place: str, recurrence: str | None) -> tuple[Streamed, States, Head, Model]:
    model, name = ordinary(place), place.split("/")[0]
    passages = short(name)
    one = streamed(place, passages, head=head_of(place))
    ended, head = through(one), one.head()
    assert head is not None
    if recurrence is not None:
        head = head.rewired(recurrence=recurrence)
        model = replace(model, head=model.require_head().rewired(recurrence=recurrence))
    return one, ended, head, model


@pytest.mark.parametrize("place", PLACES)
def test_drafts_of_fixtures(place: str) -> None:
    one, ended, head, model = wired(place, None)
    assert compare(one, ended, head, model) > 90


@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_drafts_of_two_layers(recurrence: str) -> None:
    one, ended, head, model = wired("deepseekv3/hf", recurrence)
    assert head.depth == 2
    compare(one, ended, head, model)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Toys with three layers of head, dense and with experts."""
    root = tmp_path_factory.mktemp("deep")
    dense, moe = (toy.write_hf(root / str(moe), toy.weights(moe, 3), moe, 3) for moe in (False, True))
    return dense, moe


@pytest.mark.parametrize("k", [3, 7])
@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_drafts_of_three_layers(recurrence: str, k: int, deep: tuple[Path, Path]) -> None:
    """Where "cycle" and "exact" part; and more drafts than layers, twice around."""
    folder = deep[k == 3]
    model = load_model(open_checkpoint(folder), check=False)
    head = model.require_head().rewired(recurrence=recurrence)
    rng = np.random.default_rng(3)
    texts = Passages(tuple(Passage(tuple(rng.integers(0, toy.VOCAB, size=n).tolist())) for n in (70, 9, 4, 2)))
    one = streamed(folder, texts)
    ended, ours = through(one), one.head()
    assert ours is not None
    compare(one, ended, ours.rewired(recurrence=recurrence), replace(model, head=head), k)


def test_three_recurrences_are_three(deep: tuple[Path, Path]) -> None:
    """What tells them apart is there: their third drafts differ."""
    texts = Passages((Passage(tuple(range(40))),))
    one = streamed(deep[0], texts)
    ended, head = through(one), one.head()
    assert head is not None
    with torch.inference_mode():
        made = [drafted(head.rewired(recurrence=r), ended.post, texts, 3)[2].states[0] for r in RECURRENCES]
    assert not any(torch.allclose(made[a], made[b], atol=1e-2) for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("wiring", [{"tap": "pre"}, {"recycle": "pre"}, {"mask_first": True}, {"concat": "he"}])
def test_other_wirings(wiring: dict[str, object], deep: tuple[Path, Path]) -> None:
    model = load_model(open_checkpoint(deep[0]), check=False)
    changed = replace(model.require_head().wiring, **wiring)  # type: ignore[arg-type]
    one = streamed(deep[0], Passages((Passage(tuple(range(30))), Passage((7, 8, 9)))), wiring=changed)
    ended, head = through(one), one.head()
    assert head is not None
    assert head.wiring == changed
    compare(one, ended, head, replace(model, head=model.require_head().rewired(**wiring)))


def test_beyond_the_window_of_deepseek_v4() -> None:
    """A branch's own keys push the oldest of the text out of a window of recent keys."""
    text = max(own_texts("deepseekv4"), key=lambda one: len(one.ids))
    texts = Passages((Passage(text.ids[:150]),))
    one = streamed("deepseekv4/hf", texts)
    ended, head = through(one), one.head()
    assert head is not None
    window = head.layers[0].block.mixer.window  # type: ignore[attr-defined]
    assert 4 < window < 150
    compare(one, ended, head, ordinary("deepseekv4/hf"))


def sidecar(name: str, folder: Path) -> Checkpoint:
    vocab = opened(f"{name}/hf").hparams.vocab_size
    return open_checkpoint(reduced_heads.sidecar_of(name, folder / "side", reduced_heads.most(vocab)))


@pytest.mark.parametrize("name", ["deepseekv3", "deepseekv4"])
def test_reduced_head_in_a_sidecar(name: str, tmp_path: Path) -> None:
    """Drafts are tokens of the whole vocabulary, none of them left out of the head's."""
    beside = sidecar(name, tmp_path)
    model = with_head(ordinary(f"{name}/hf"), beside)
    one = streamed(f"{name}/hf", short(name), head=beside)
    ended, head = through(one), one.head()
    assert head is not None
    assert head.reduced
    compare(one, ended, head, model)
    with torch.inference_mode():
        tokens = _tokens(head, drafted(head, ended.tap(head.wiring.tap), one.passages, K))
    assert all(np.all(part % 4 != 0) for drafts in tokens for part in drafts)


def test_reduced_head_of_a_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = reduced_heads.gguf_of(tmp_path / "reduced.gguf", monkeypatch)
    model = load_model(open_checkpoint(path), check=False)
    one = streamed(path, Passages((Passage(tuple(range(3, 60))),)))
    ended, head = through(one), one.head()
    assert head is not None
    assert head.reduced
    assert head.depth == 2
    compare(one, ended, head, model)


def two(name: str) -> Passages:
    """Texts of the model's own, one of which is cut."""
    first, second, *_ = [text for text in own_texts(name) if len(text.ids) == 92]
    return Passages((first, Passage(second.ids[:60], second.start)))


@cache
def traces(name: str) -> tuple[Trace, ...]:
    """What decoding plainly would have left behind of them."""
    model = ordinary(f"{name}/hf")
    return tuple(
        Trace(list(p.ids[: p.start]), len(p.ids) - p.start, list(p.ids[p.start :]), states=read(model, p))
        for p in two(name).all
    )


@cache
def counts(name: str, k: int) -> Acceptance:
    """Of the loop, by the ordinary decoder's `simulate`."""
    return total(k, [simulate(ordinary(f"{name}/hf").require_head(), trace, k) for trace in traces(name)])


@pytest.mark.parametrize(("name", "exact"), [*((name, False) for name in TRAINED), ("qwen35moe", True)])
def test_counts_of_the_loop(name: str, exact: bool) -> None:
    """On the model's own text: what the loop counts at every k."""
    report = stream(streamed(f"{name}/hf", two(name), exact=exact), K, controls=False)
    assert report.own_text
    assert report.trunk.agreement == 1
    assert report.trunk.counted == 64 + 32
    assert report.walked == [counts(name, k) for k in (1, 2, 3, 4)]


@pytest.mark.parametrize("name", ["qwen35", "deepseekv3"])
def test_controls_are_those_of_the_ordinary_decoder(name: str) -> None:
    """Every fault changes acceptance as much as it does where `verify --parity` tries it.

    The pass knows one token more: the trunk's choice after the text.
    """
    model = ordinary(f"{name}/hf")
    longer = []
    for trace in traces(name):
        assert trace.states is not None
        with torch.inference_mode():
            after = int(model.trunk.logits(trace.states)[-1].argmax())
        longer.append(replace(trace, tokens=[*trace.tokens, after]))
    with torch.inference_mode():
        wanted = try_controls(model.require_head(), of_traces(longer))
    report = stream(streamed(f"{name}/hf", two(name)), 1)
    assert report.controls == wanted
    assert len(wanted) >= 5
    assert report.control_rows == 152


def test_controls_are_tried_on_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of all passages, cut within one: the same as a pass over those alone."""
    monkeypatch.setattr(run, "CONTROL_ROWS", 100)
    texts = two("qwen35")
    cut = Passages((texts.all[0], Passage(texts.all[1].ids[:8], 8)))
    many, few = (stream(streamed("qwen35/hf", one), 1) for one in (texts, cut))
    assert many.control_rows == few.control_rows == 100
    assert [c.acceptance for c in many.controls] == [c.acceptance for c in few.controls]


def test_without_a_head() -> None:
    report = stream(streamed("qwen35/gguf/trunk-Q8_0.gguf", short("qwen35")), 3)
    assert report.rates is None
    assert report.walked == []
    assert not report.own_text
    assert report.controls == []
    assert report.trunk.counted == 48 + 9 + 1


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("recurrence", RECURRENCES)
def test_texts_shorter_than_the_drafts(n: int, recurrence: str, exact: bool, deep: tuple[Path, Path]) -> None:
    """Slots that there is no text for draft nothing, and nothing fails."""
    wiring = replace(ordinary("qwen35/hf").require_head().wiring, recurrence=recurrence)
    report = stream(streamed(deep[0], Passages((Passage(tuple(range(n))),)), wiring=wiring, exact=exact), 6)
    assert report.rates is not None
    assert len(report.rates.tried) == 6
    assert report.rates.tried[0] == n - 1
