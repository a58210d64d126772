"""The start-up self-test: does a row keep its bits wherever it stands, whatever stands beside it?

Per distinct weight shape and dtype one row is rolled through 16 positions, between two kinds of other rows, at
several row counts; attention is tried around chunk edges. Exact decoding is refused if one bit moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from mtptools.decoder.attention import attend
from mtptools.decoder.cache import CHUNK, KVCache
from mtptools.decoder.model import Model
from mtptools.decoder.moe import Mlp, Moe
from mtptools.decoder.ops import Arithmetic
from mtptools.errors import SystemFailure

__all__ = ["ROW_COUNTS", "check_rows", "self_test"]

ROW_COUNTS: Final = (1, 2, 4, 5, 16, 33)
"""Plain decoding, k = 1, 3 and 4, one full tile, three tiles."""

POSITIONS: Final = 16
FEW_COUNTS: Final = (1, 4)
"""For a weight so large that one round of `ROW_COUNTS` takes seconds: an output matrix of a large vocabulary."""

BUDGET: Final = 5e8
"""Multiply-adds a shape may cost; larger weights are tried at fewer positions, the largest at fewer counts."""

_PASSED: set[tuple[object, ...]] = set()


def self_test(model: Model) -> None:
    """Raises SystemFailure naming the first shape whose rows are not exact. Shapes that passed are not tried again."""
    ops = model.arithmetic
    for name, weight in _weights(model):
        key = (tuple(weight.shape), weight.dtype, weight.device, torch.get_num_threads(), ops.tile, ops.wide_tile)
        if key in _PASSED:
            continue
        product = ops.logits if name == "output" else ops.linear
        what = f"{name} {list(weight.shape)} {str(weight.dtype).removeprefix('torch.')} on {weight.device}"
        check_rows(partial(_times, product, weight), weight.shape[1], what, weight.device, weight.numel())
        _PASSED.add(key)
    hp = model.hparams
    shape = ("attention", hp.n_heads, hp.n_kv_heads, hp.head_dim, model.dtype, ops)
    if shape not in _PASSED:
        _check_attention(ops, hp.n_heads, hp.n_kv_heads, hp.head_dim, model.dtype)
        _PASSED.add(shape)


def _times(product: Callable[[Tensor, Tensor], Tensor], weight: Tensor, x: Tensor) -> Tensor:
    return product(x, weight)


def _weights(model: Model) -> Iterator[tuple[str, Tensor]]:
    yield "output", model.trunk.output
    blocks = list(model.trunk.blocks)
    if model.head is not None:
        yield "output", model.head.output
        for layer in model.head.layers:
            yield "fuse", layer.fuse
            blocks.append(layer.block)
    for block in blocks:
        weights = block.mixer.weights
        yield "mixer input", weights.qkvg if hasattr(weights, "qkvg") else weights.fused
        yield "mixer output", weights.out
        yield from _feed_forward(block.mlp)


def _feed_forward(mlp: Mlp | Moe) -> Iterator[tuple[str, Tensor]]:
    if isinstance(mlp, Moe):
        yield "router", mlp.weights.router
        yield "expert gate and up", mlp.weights.gate_up[0]
        yield "expert down", mlp.weights.down[0]
        mlp = mlp.shared
    yield "gate and up", mlp.weights.gate_up
    yield "down", mlp.weights.down


def check_rows(fn: Callable[[Tensor], Tensor], width: int, what: str, device: torch.device, cost: float) -> None:
    """Roll a row through `fn` [rows, width] -> [rows, …]. `cost` is one row's multiply-adds."""
    generator = torch.Generator().manual_seed(0)
    row, other = (torch.randn((n, width), generator=generator) for n in (1, max(ROW_COUNTS)))
    fillers = (torch.zeros_like(other), other * 8)
    wanted = fn(row.to(device))
    round_cost = cost * sum(ROW_COUNTS) * len(fillers)
    positions = max(1, min(POSITIONS, int(BUDGET / max(round_cost, 1))))
    counts = ROW_COUNTS if round_cost < 8 * BUDGET else FEW_COUNTS
    for count in counts:
        last = count - 1
        spread = {p * last // (positions - 1) for p in range(positions)} if positions > 1 else {last}
        for filler in fillers[: 1 if count == 1 else 2]:
            for position in sorted(spread):
                batch = filler[:count].clone()
                batch[position] = row[0]
                if not torch.equal(fn(batch.to(device))[position], wanted[0]):
                    raise _moved(what, f"row {position} of {count}")


def _check_attention(ops: Arithmetic, n_heads: int, n_kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    cache = KVCache(n_kv_heads, dim, dtype, ops.device)
    cache.append(torch.randn((2 * CHUNK + 3, 2, n_kv_heads, dim), generator=generator).to(ops.device))
    queries = torch.randn((6, n_heads, dim), generator=generator).to(ops.device)
    for edge in (CHUNK, 2 * CHUNK):
        last = list(range(edge - 3, edge + 3))
        together = attend(ops, queries, cache, last)
        for row, end in enumerate(last):
            if not torch.equal(attend(ops, queries[row : row + 1], cache, [end])[0], together[row]):
                raise _moved(f"attention with {n_heads} heads of {dim} on {ops.device}", f"the query at slot {end}")


def _moved(what: str, where: str) -> SystemFailure:
    return SystemFailure(
        f"arithmetic is not exact here: {what}: {where} has other bits than alone",
        hint="report the machine and `python -m torch.utils.collect_env`; --device cpu --dtype float32 is the safest",
    )
