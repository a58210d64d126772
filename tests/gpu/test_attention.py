"""Attention on the device: near the exact one, each row by itself, and whole models whose attention goes through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mtptools.decoder import kernels, ops
from mtptools.decoder.cache import KVCache
from mtptools.decoder.kernels import attention
from tests.gpu import artifacts
from tests.gpu.cases import DTYPES, on
from tests.gpu.decoding import SAMPLINGS, speculative_is_plain
from tests.gpu.rows import COUNTS, same
from tests.interpreted import Summed
from tests.kernels.checks_attention import (
    Shape,
    at_every_place,
    is_near,
    nothing_beyond_sight,
    queries_of,
    sink_is_near,
    text,
)

SHAPES = {
    "27B": Shape(4, 24, 256, 256),
    "GLM-4.5-Air": Shape(8, 96, 128, 128),
    "DeepSeek-V3": Shape(1, 128, 576, 512, shared=True),
    "DeepSeek-V4": Shape(1, 64, 512, 512, shared=True),
    "odd": Shape(3, 51, 40, 24),
    "small": Shape(1, 2, 16, 16),
}
EVERY = [(name, dtype) for name in SHAPES for dtype in DTYPES]


@pytest.mark.parametrize(("device", "name", "dtype"), on(EVERY, [("odd", "bfloat16")]))
def test_near(device: torch.device, name: str, dtype: str) -> None:
    last = [0, 62, 63, 64, 199, 510, 511, 512, 1100] if device.type == "cuda" else [0, 64]
    is_near(SHAPES[name], DTYPES[dtype], last, device)


@pytest.mark.parametrize(("device", "dtype"), on(DTYPES, ["bfloat16"]))
def test_sinks(device: torch.device, dtype: str) -> None:
    sink_is_near(DTYPES[dtype], device)


@pytest.mark.parametrize(("device", "name", "dtype"), on(EVERY, [("small", "float32")]))
def test_rows_by_themselves(device: torch.device, name: str, dtype: str) -> None:
    counts, last = (COUNTS, [0, 63, 64, 511, 512, 2000, 8191]) if device.type == "cuda" else ((1, 5), [63, 64])
    cache = text(SHAPES[name], DTYPES[dtype], max(last) + 1, device)
    assert at_every_place(cache, SHAPES[name], counts, last)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_what_a_row_does_not_see(device: torch.device, name: str) -> None:
    for n in (10, 64, 65, 600) if device.type == "cuda" else (65,):
        nothing_beyond_sight(SHAPES[name], n, device)


@pytest.mark.parametrize(("device", "name"), on(SHAPES, ["small"]))
def test_again(device: torch.device, name: str) -> None:
    """The same launch gives the same bits: no order is left to chance."""
    shape, n = SHAPES[name], 4096 if device.type == "cuda" else 70
    cache, queries = text(shape, torch.bfloat16, n, device), queries_of(shape, 5).to(device)
    first = attention.attend(queries, cache, [n - 1] * 5)
    again = 20 if device.type == "cuda" else 1
    assert all(same(attention.attend(queries, cache, [n - 1] * 5), first) for _ in range(again))


MODELS = [(name, dtype) for name in artifacts.HF for dtype in DTYPES]


@pytest.mark.parametrize(
    ("device", "name", "dtype"),
    on(MODELS, [("deepseekv4", "float32")]),
)
def test_speculative_is_plain(device: torch.device, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every layer's attention by kernels; over the edges of chunks where that takes no time."""
    monkeypatch.setattr(kernels, "chosen", lambda device: True)
    if device.type == "cpu":
        monkeypatch.setattr(ops, "floats", Summed)
    model, prompt = artifacts.load(name, device, "loaded", dtype), artifacts.prompt_of(name)
    looked = count(monkeypatch)
    if device.type == "cuda":
        speculative_is_plain(model, prompt * (60 // len(prompt) + 1), 40, [1, 3])
    else:
        speculative_is_plain(model, prompt[:4], 6, [2], SAMPLINGS[1:], ["fast"])
    assert {1, 3} <= set(looked)


def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every call."""
    rows: list[int] = []
    plain, sink = attention.attend, attention.attend_sink

    def attend(queries: Tensor, cache: KVCache, last: Sequence[int], *more: Any) -> Tensor:
        rows.append(len(queries))
        return plain(queries, cache, last, *more)

    def attend_sink(queries: Tensor, sinks: Tensor, sights: Sequence[tuple[KVCache, int, Tensor]]) -> Tensor:
        rows.append(len(queries))
        return sink(queries, sinks, sights)

    monkeypatch.setattr(attention, "attend", attend)
    monkeypatch.setattr(attention, "attend_sink", attend_sink)
    return rows


@pytest.mark.parametrize(("device", "name"), on(["qwen35"], ["qwen35"]))
def test_attention_that_depends_on_rows_is_seen(
    device: torch.device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault put in on purpose: one bit, by the number of rows."""
    model = artifacts.load(name, device, "loaded", "float32")
    model = replace(
        model, trunk=replace(model.trunk), head=replace(model.require_head())
    )  # of which nothing is recorded
    monkeypatch.setattr(kernels, "chosen", lambda device: True)
    honest = attention.attend

    def wrong(queries: Tensor, cache: KVCache, last: Sequence[int], *more: Any) -> Tensor:
        return honest(queries, cache, last, *more) * (1 + (len(queries) == 3) * 2.0**-22)

    monkeypatch.setattr(attention, "attend", wrong)
    with pytest.raises(AssertionError, match="first_difference=1"):
        speculative_is_plain(model, artifacts.prompt_of(name)[:4], 6, [2], SAMPLINGS[:1], ["fast"])
