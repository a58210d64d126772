"""A pass that decodes beside its products finds what one finds that does one thing after the other."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from mtptools.decoder import best as bests
from mtptools.decoder.best import best
from mtptools.decoder.free import Free
from mtptools.decoder.packed import Packed
from mtptools.decoder.parts import Part
from mtptools.decoder.stream import helpers, read_ahead
from mtptools.decoder.stream import model as models
from mtptools.decoder.stream.coming import Awaited
from mtptools.decoder.stream.experts import Routed
from mtptools.decoder.stream.model import Streamed
from mtptools.decoder.stream.passages import Passage, Passages
from mtptools.decoder.stream.read_ahead import announce, stored
from mtptools.decoder.stream.run import stream, stream_layers
from mtptools.decoder.trunk import Block
from mtptools.errors import CorruptError
from tests import rewrite
from tests.decoder.stream.given import CPU, opened, short, streamed, through
from tests.decoder.stream.test_helpers import running, threads, until
from tests.decoder.stream.test_states import told

DENSE = ("qwen35/hf", "qwen35/gguf/trunk-Q4_K.gguf", "qwen35/gguf/trunk-Q8_0.gguf")
EXPERTS = ("qwen35moe/gguf/trunk-Q4_K.gguf", "deepseekv3/hf", "deepseekv4/hf")
FULL = "qwen35/gguf/model-BF16.gguf"
TEXT = Passages((Passage(tuple(range(5, 30)), 3), Passage((300, 2, 77))))
"""For any vocabulary."""


def one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where nothing is decoded ahead: layers when they are built, experts and the output matrix at the use."""
    monkeypatch.setattr(Streamed, "_helpers", lambda self: None)
    monkeypatch.setattr(models, "Blockwise", Free)


@pytest.mark.parametrize(
    ("place", "dtype"), [*((place, "float32") for place in (*DENSE, *EXPERTS)), (DENSE[1], "bfloat16")]
)
def test_bits(place: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of states, choices and likelihoods. Free sums over experts go in another order; exact ones are in test_trunk."""

    def ended() -> tuple[torch.Tensor, torch.Tensor]:
        one = streamed(place, TEXT, dtype=dtype, exact=False)
        with one.at_work(), torch.inference_mode():
            post = through(one).post
            found = best(one.arithmetic, post, one.trunk.output, TEXT.ids)
        return post, torch.stack((found.log_likelihood, found.first.double(), found.margin.double()))

    with threads(2):
        ours = ended()
    one_after_the_other(monkeypatch)
    theirs = ended()
    if place in DENSE:
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    else:
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("place", ["qwen35/hf", FULL])
def test_reports(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts and controls, and two files side by side."""

    def report() -> dict[str, object]:
        return told(stream(streamed(place, TEXT, exact=False), 2, other=streamed(FULL, TEXT, exact=False)))

    ours = report()
    one_after_the_other(monkeypatch)
    assert report() == ours


def test_the_next_layer_is_decoded_while_this_one_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that does not end before the next one's first matrix is there."""
    one = streamed("qwen35/hf", TEXT)
    feed, waited = Block.feed, Counter[int]()

    def slow(self: Block, *given: object) -> torch.Tensor:
        out = feed(self, *given)  # type: ignore[arg-type]
        if one._next is not None:
            waited[one.done] += 1
            first = next(weight.coming for _, weight in one._next[1].matrices() if isinstance(weight, Awaited))
            until(lambda: first.ready == first.rows)
        return out

    monkeypatch.setattr(Block, "feed", slow)
    with one.at_work():
        stream_layers(one, 0, one.n_layers, None)
    assert waited == Counter(range(one.n_layers - 1))


def decoded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Counter[str]]:
    """Tensors of which rows are decoded from here on, by how many rows."""
    seen: list[tuple[str, int]] = []  # to append is safe in any thread
    fill = helpers.fill

    def noted(out: torch.Tensor, parts: Sequence[Part], where: object) -> None:
        seen.extend((part.tensor.name, part.n_rows) for part in parts)
        fill(out, parts, where)

    def rows() -> Counter[str]:
        return sum((Counter({name: n}) for name, n in seen), Counter())

    monkeypatch.setattr(helpers, "fill", noted)
    return rows


@pytest.mark.parametrize("place", [FULL, "qwen35moe/gguf/model-BF16.gguf"])
def test_everything_once(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of layers and of the head, experts that any row meets, and the output matrix for trunk and drafts."""
    ours = decoded(monkeypatch)
    ckpt = opened(place)
    stream(streamed(place, short(place.split("/")[0]), exact=False), 1, controls=False)
    rows = ours()
    hp = ckpt.hparams
    names = [name for name, tensor in ckpt.items() if len(tensor.shape) > 1 and "norm" not in name]
    whole = {n for n in names if rows[n] and "exps" not in n}
    assert len(whole) > 4 * hp.n_layers
    assert all(rows[name] == ckpt[name].n_rows for name in whole)
    experts = {name: rows[name] for name in names if "exps" in name}
    assert bool(experts) == bool(hp.n_experts)
    for name, n in experts.items():
        each = ckpt[name].n_rows // hp.n_experts
        assert n % each == 0
        assert hp.n_experts_used * each < n <= ckpt[name].n_rows


@pytest.mark.parametrize("step", [16, 48, 1 << 20])
def test_the_output_matrix_by_parts(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part once, the last one too, which is smaller; and from the first one on again."""
    one = streamed(FULL, TEXT, exact=False)
    monkeypatch.setattr(bests, "BLOCK", step * one.ckpt.hparams.hidden_size)
    plain = Packed(one.trunk.output.parts, one.trunk.output.shape, torch.float32, CPU, "a file")  # type: ignore[union-attr]
    states = torch.randn(5, one.ckpt.hparams.hidden_size)
    wanted = best(one.arithmetic, states, plain)
    rows = decoded(monkeypatch)
    with one.at_work():
        for times in (1, 2):
            found = best(one.arithmetic, states, one.trunk.output)
            assert torch.equal(found.first, wanted.first)
            assert torch.equal(found.margin, wanted.margin)
            assert rows() == Counter({"token_embd.weight": times * plain.shape[0]})


def test_only_the_layers_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after them is perhaps not here."""
    rows = decoded(monkeypatch)
    stream_layers(streamed(FULL, TEXT), 0, 2, None)
    assert {name.split(".")[1] for name in rows() if name.startswith("blk.")} == {"0", "1"}
    assert running() == []


def ruined(values: np.ndarray) -> np.ndarray:
    values[-1, -1] = np.nan
    return values


@pytest.mark.parametrize(
    ("place", "name", "layers"),
    [
        (FULL, "blk.2.ffn_gate.weight", 2),
        (FULL, "blk.0.attn_qkv.weight", 0),
        (FULL, "blk.4.attn_output.weight", 4),
        (FULL, "token_embd.weight", 4),
        ("qwen35moe/gguf/model-BF16.gguf", "blk.1.ffn_down_exps.weight", 1),
    ],
)
def test_damage_is_named(place: str, name: str, layers: int, tmp_path: Path) -> None:
    """At the layer that uses it: those before are done, and kept."""
    source = opened(place)
    edit = {name: lambda a: ruined(a.reshape(-1, a.shape[-1])).reshape(a.shape)}
    path = rewrite.gguf(source.path, tmp_path / "ruined.gguf", edit=edit)
    vocab = source.hparams.vocab_size
    every = Passages((Passage(tuple(range(5, vocab - 1, 3))),))
    one = streamed(path, every, exact=False)
    with pytest.raises(CorruptError, match=name) as caught:
        stream(one, 1, folder=tmp_path / "states")
    assert caught.value.where == str(path)
    assert one.done == layers
    assert running() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, CorruptError])
def test_no_thread_is_left(error: type[BaseException]) -> None:
    before = threading.active_count()
    one = streamed(FULL, TEXT)

    def say(done: int, total: int, what: str) -> None:
        if what.startswith("layer 3"):
            assert running()
            raise error("enough")

    with pytest.raises(error):
        stream(one, 1, progress=say)
    assert threading.active_count() == before
    assert torch.get_num_threads() == 1 or not running()


def test_experts_are_known_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that rows go to, in the order of their use, and no other."""
    one = streamed("qwen35moe/hf", TEXT, exact=False)
    told_of: list[str] = []
    with one.at_work(), torch.inference_mode():
        block = one.builder.block(("layer", 0), one.builder.settings.layers[0])
        assert isinstance(block, Block)
        assert isinstance(block.ffn, Routed)
        monkeypatch.setattr(one.helpers, "expect", lambda those: told_of.extend(those))
        x = torch.randn(2, one.ckpt.hparams.hidden_size)
        block.ffn.forward(x)
        routed = block.ffn.route(x @ block.ffn.weights.router.T)
    used = one.ckpt.hparams.n_experts_used
    met = sorted({int(expert) for row in routed[:, :used].tolist() for expert in row})
    shapes = [tuple(coming.matrix.shape) for coming in told_of[: 2 * len(met)]]  # type: ignore[attr-defined]
    assert len(told_of) == 4 * len(met), "asked twice"
    assert shapes == [block.ffn.weights.gate_up.shape[1:], block.ffn.weights.down.shape[1:]] * len(met)


@pytest.mark.parametrize("exact", [False, True])
def test_an_expert_at_a_time(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a layer, together, are many times what may be held; threads beside decode them all the same."""
    one = streamed("qwen35moe/gguf/model-BF16.gguf", TEXT, exact=exact)
    assert one.helpers is not None
    buffers, most, by = one.helpers._buffers, 0, Counter[str]()
    one.helpers.room *= 2  # of which the shared expert takes all that there is in this small model
    lend, fill = buffers.lend, helpers.fill

    def lent(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        nonlocal most
        out = lend(shape, dtype)
        most = max(most, buffers.held - sum(size * len(idle) for size, idle in buffers._idle.items()))
        return out

    def noted(out: torch.Tensor, parts: Sequence[Part], where: object) -> None:
        if "exps" in parts[0].tensor.name:
            by[threading.current_thread().name] += 1
        fill(out, parts, where)

    def route(self: Routed, *more: object) -> torch.Tensor:
        """Where the products wait, the threads beside begin with what rows meet."""
        before, found = by["decoding ahead"], routed(self, *more)  # type: ignore[arg-type]
        until(lambda: by["decoding ahead"] > before)
        return found

    routed = Routed.route
    monkeypatch.setattr(Routed, "route", route)
    monkeypatch.setattr(buffers, "lend", lent)
    monkeypatch.setattr(helpers, "fill", noted)
    with one.at_work():
        one.begin()
        for n in range(one.n_layers):
            one.layer(last=n + 1 == one.n_layers)
            assert not [coming for coming in one.helpers._queue if coming.taken], "held, though nobody needs them"
    assert most <= buffers.limit + one.helpers.room / 2


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no such advice")
def test_the_system_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each byte, at most: what is needed before a helper comes to it is read at once."""
    advised = np.zeros(opened(FULL).path.stat().st_size, np.int64)

    def advise(file: int, at: int, n: int, advice: int) -> None:
        advised[at : at + n] += 1

    monkeypatch.setattr(os, "posix_fadvise", advise)
    one = streamed(FULL, TEXT, exact=False)
    stream(one, 1, controls=False)
    assert advised.max() == 1


def test_no_more_is_announced_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first matrix that is not done on."""
    one = streamed(FULL, TEXT)
    block = one.builder.block(("layer", 0), one.builder.settings.layers[0])
    given = [weight.coming for _, weight in block.matrices() if isinstance(weight, Awaited)]
    monkeypatch.setattr(helpers, "WINDOW", given[0].stored)
    work = helpers.Helpers(1, 1)
    work._queue.extend(given)
    assert len(given) == 4
    assert work._news() == [*stored(given[0].matrix.parts), *stored(given[1].matrix.parts)]
    assert work._news() == []
    work._queue.popleft()
    assert work._news() == ([] if given[1].stored > given[0].stored else [*stored(given[2].matrix.parts)])


def test_advice_in_pieces_that_are_heeded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where bytes of rows are, in each of the files that hold them; a system that takes no advice is not asked."""
    advised: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, at, n, advice: advised.append((at, n)), raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_WILLNEED", 3, raising=False)
    monkeypatch.setattr(read_ahead, "_heeded", lambda device: 1000)
    weights = streamed(FULL, TEXT).builder.source.parts(("layer", 0), "gate")
    (blob,) = stored([weights[0].rows(3, 7)])
    whole = weights[0].tensor.blobs[0]
    row = weights[0].tensor.row_bytes
    assert (blob.path, blob.offset, blob.nbytes) == (whole.path, whole.offset + 3 * row, 4 * row)
    announce([blob])
    assert sum(n for _, n in advised) == blob.nbytes
    assert [at for at, _ in advised] == list(range(blob.offset, blob.offset + blob.nbytes, 1000))
    monkeypatch.delattr(os, "posix_fadvise")
    announce([blob])
