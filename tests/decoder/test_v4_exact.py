"""DeepSeek-V4: the same bits however the text is cut into passes, and whatever was read and forgotten in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mtptools.checkpoint import open_checkpoint
from mtptools.decoder import selftest
from mtptools.decoder.compressed import CompressedAttention
from mtptools.decoder.compressor import Compressor, WindowCache
from mtptools.decoder.load import load_model
from mtptools.decoder.model import Model
from mtptools.decoder.mtp_head import HeadWiring
from mtptools.decoder.ops import Arithmetic
from mtptools.decoder.parity import compare
from mtptools.decoder.sampling import GREEDY, Sampling
from mtptools.decoder.speculate import decode_plain, decode_speculative
from mtptools.decoder.trunk import States
from mtptools.errors import SystemFailure
from tests.decoder import toy_v4 as toy

WIRING = HeadWiring("eh", "streams", "streams")
TEXT = torch.randint(0, toy.VOCAB, (272,), generator=torch.Generator().manual_seed(4)).tolist()  # two windows of 128


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """ "float32", "bfloat16"; "released", stored in FP8 and FP4; "cycle", whose text the head knows"""
    root = tmp_path_factory.mktemp("v4")

    @cache
    def path(kind: str) -> Path:
        if kind == "released":
            toy.write_released(root / kind, root / "values", toy.weights())
            return root / kind
        return toy.write_hf(root / kind, toy.weights(cycle=kind == "cycle"))

    @cache
    def get(kind: str = "float32") -> Model:
        dtype = "bfloat16" if kind == "bfloat16" else "float32"
        stored = path(kind if kind in ("released", "cycle") else "plain")
        return load_model(open_checkpoint(stored), dtype=dtype, wiring=WIRING)

    return get


def passes(model: Model, size: int, start: int, until: int) -> States:
    """The first `start` tokens in one pass, the others in passes of `size`."""
    cache_ = model.trunk.new_cache()
    parts = [model.trunk.forward(TEXT[:start], cache_)] if start else []
    parts += [model.trunk.forward(TEXT[at : min(at + size, until)], cache_) for at in range(start, until, size)]
    return States.joined(parts)


def with_rejections(model: Model, size: int, start: int, until: int) -> States:
    """Passes of `size` tokens, of which only the first few are the text's and kept."""
    cache_, at = model.trunk.new_cache(), start
    parts = [model.trunk.forward(TEXT[:start], cache_)] if start else []
    draw = torch.Generator().manual_seed(size)
    while at < until:
        keep = min(int(torch.randint(1, size + 1, (1,), generator=draw)), until - at)
        cache_.start()
        wrong = [(token * 7 + 3) % toy.VOCAB for token in TEXT[at + keep : at + size]]
        parts.append(model.trunk.forward(TEXT[at : at + keep] + wrong, cache_).part(0, keep))
        cache_.rollback(at + keep)
        at += keep
    return States.joined(parts)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits(dtype: str, load: Callable[..., Model]) -> None:
    """One pass is token by token is passes of 3, 5, 17 is passes that are partly forgotten, past ends of windows."""
    model = load(dtype)
    whole = passes(model, len(TEXT), 0, len(TEXT))
    logits = model.trunk.logits(whole)
    for read, size, start, until in (
        (passes, 1, 0, 12),
        (passes, 1, 118, 134),
        (passes, 3, 0, 132),
        (passes, 5, 250, len(TEXT)),
        (passes, 17, 0, len(TEXT)),
        (with_rejections, 2, 120, 136),
        (with_rejections, 6, 0, 132),
        (with_rejections, 9, 240, len(TEXT)),
    ):
        states = read(model, size, start, until)
        assert torch.equal(states.pre, whole.pre[:until]), f"{read.__name__} of {size}"
        assert torch.equal(model.trunk.logits(states), logits[:until])


@torch.inference_mode()
def test_tiles(load: Callable[..., Model]) -> None:
    """The arithmetic of other devices, 16 rows a tile, on this one: rows that see other chunks leave each other be."""
    mixer = load().trunk.blocks[1].mixer  # type: ignore[attr-defined]
    assert isinstance(mixer, CompressedAttention)
    ops = Arithmetic(mixer.arithmetic.device, 16)
    assert mixer.compressor is not None
    assert mixer.indexer is not None
    compressor = replace(mixer.compressor, arithmetic=ops)
    index = replace(mixer.indexer.compressor, arithmetic=ops)
    indexer = replace(mixer.indexer, compressor=index, arithmetic=ops)
    tiled = replace(mixer, arithmetic=ops, compressor=compressor, indexer=indexer)
    x = torch.randn((150, toy.H), generator=torch.Generator().manual_seed(3))
    whole = tiled.forward(x, tiled.new_cache(), 0)
    torch.testing.assert_close(whole, mixer.forward(x, mixer.new_cache(), 0), rtol=1e-5, atol=1e-4)
    cache_ = tiled.new_cache()
    rows = [tiled.forward(x[:61], cache_, 0)]
    rows += [tiled.forward(x[at : at + 1], cache_, at) for at in range(61, 70)]
    rows += [tiled.forward(x[at : at + 7], cache_, at) for at in range(70, 150, 7)]
    assert torch.equal(torch.cat(rows), whole)


SAMPLED = Sampling(temperature=1.0, top_k=50, seed=11)


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [("float32", GREEDY), ("bfloat16", SAMPLED), ("released", GREEDY), ("released", SAMPLED)],
    ids=["float32-greedy", "bfloat16-sampled", "released-greedy", "released-sampled"],
)
def test_speculative(kind: str, sampling: Sampling, load: Callable[..., Model]) -> None:
    """Over the end of a window of 128, with drafts that are the text's own, and spoiled in places."""
    model = load(kind)
    plain = decode_plain(model, TEXT[:122], 20, sampling=sampling)
    for k, mode in ((1, "fast"), (3, "fast"), (8, "fast"), (3, "serial")):
        emitted: list[int] = []
        spoil: Iterator[int] = iter(range(1000))

        def corrupt(drafts: list[int], step: int) -> list[int]:
            true = plain.tokens[len(emitted) : len(emitted) + len(drafts)]  # noqa: B023
            return [(token + 1) % toy.VOCAB if next(spoil) % 5 == 4 else token for token in true]  # noqa: B023

        trace = decode_speculative(
            model, TEXT[:122], 20, k, mode=mode, sampling=sampling, corrupt=corrupt, on_tokens=emitted.extend
        )
        assert compare(plain, trace).equal, compare(plain, trace)
        assert sum(trace.drafts.drafted) > sum(trace.drafts.accepted) > 5


def test_head_drafts(load: Callable[..., Model]) -> None:
    """The head of a model that walks a cycle knows it, so its own drafts are kept."""
    plain = decode_plain(load("cycle"), TEXT[:122], 20)
    for k in (1, 3):
        trace = decode_speculative(load("cycle"), TEXT[:122], 20, k)
        assert compare(plain, trace).equal
        assert sum(trace.drafts.accepted) >= 0.8 * sum(trace.drafts.drafted) > 5


def test_self_test_sees_passes(load: Callable[..., Model], monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed key that differs by where it was made: in a pass of one token."""
    late = Compressor.read

    def read(self: Compressor, rows: Tensor, cache_: WindowCache) -> None:
        late(self, rows, cache_)
        if rows.shape[0] == 1 and cache_.length % self.ratio == 0:
            cache_.keys.chunks[0][:, cache_.keys.length - 1] += 1e-3

    model = load()
    monkeypatch.setattr(selftest, "_PASSED", set())
    selftest.self_test(model)
    monkeypatch.setattr(selftest, "_PASSED", set())
    monkeypatch.setattr(Compressor, "read", read)
    with pytest.raises(SystemFailure, match="attention over windows of 4 tokens"):
        selftest.self_test(model)
